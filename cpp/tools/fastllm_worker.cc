// The process of a rank, started by an engine with distributed_executor_backend "processes".
#include "fastllm/worker.h"

int main() { return fastllm::RunWorker(3); }
