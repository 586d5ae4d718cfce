// FASTLLM_API: a symbol that libengine exports. Everything else in the library is hidden.
#pragma once

#define FASTLLM_API __attribute__((visibility("default")))
