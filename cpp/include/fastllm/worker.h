// The program of a rank, for EngineConfig's distributed_executor_backend "processes".
#pragma once

#include "fastllm/export.h"

namespace fastllm {

// Runs one rank of the engine whose process is at the other end of the socket, which is a descriptor that the engine
// leaves to the programs it starts: 3. Returns the exit status when the engine ends, and ends the process when the
// engine's does. For a process that has nothing else to do.
FASTLLM_API int RunWorker(int socket);

}  // namespace fastllm
