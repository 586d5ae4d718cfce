#include "runtime/executor/rank_job.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

namespace fastllm::runtime {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMostJobBytes = uint64_t{4} << 20;

Status Gone(const char* what) {
  return Status::Unavailable(std::string(what) + ": " +
                             (errno == 0 ? "the other side has gone" : std::strerror(errno)));
}

Status SendAll(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return Gone("sending a job");
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return Status::Ok();
}

Status ReceiveAll(int socket, char* to, size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = recv(socket, to, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) errno = 0;
    if (got <= 0) return Gone("receiving a job");
    to += got;
    bytes -= static_cast<size_t>(got);
  }
  return Status::Ok();
}

// The length of what follows, with room for a descriptor beside it.
struct JobHead {
  JobHead() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = space.data();
    header.msg_controllen = space.size();
  }
  JobHead(const JobHead&) = delete;
  JobHead& operator=(const JobHead&) = delete;

  uint64_t size = 0;
  iovec part{&size, sizeof(size)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> space{};
  msghdr header{};
};

}  // namespace

std::string ToJson(const RankJob& job) {
  const ShmHubPlan& hub = job.memory.hub;
  return Json{{"rank", job.rank},
              {"tensor", hub.sizes.tensor},
              {"pipeline", hub.sizes.pipeline},
              {"first", hub.node.first},
              {"count", hub.node.count},
              {"message_bytes", hub.message_bytes},
              {"timeout_ms", hub.timeout.count()},
              {"plan_bytes", job.memory.plan_bytes},
              {"result_bytes", job.memory.result_bytes},
              {"engine", job.engine},
              {"num_threads", job.num_threads},
              {"group_prefix", job.group_prefix},
              {"store_host", job.store_host},
              {"store_port", job.store_port},
              {"interface_address", job.interface_address}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<RankJob> RankJobFromJson(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    RankJob job;
    ShmHubPlan& hub = job.memory.hub;
    job.rank = json.at("rank");
    hub.sizes.tensor = json.at("tensor");
    hub.sizes.pipeline = json.at("pipeline");
    hub.node.first = json.at("first");
    hub.node.count = json.at("count");
    hub.message_bytes = json.at("message_bytes");
    hub.timeout = std::chrono::milliseconds(json.at("timeout_ms").get<int64_t>());
    job.memory.plan_bytes = json.at("plan_bytes");
    job.memory.result_bytes = json.at("result_bytes");
    job.engine = json.at("engine");
    job.num_threads = json.at("num_threads");
    job.group_prefix = json.at("group_prefix");
    job.store_host = json.at("store_host");
    job.store_port = json.at("store_port");
    job.interface_address = json.at("interface_address");
    return job;
  } catch (const Json::exception& e) {
    return Status::DataLoss(std::string("no job of a rank: ") + e.what());
  }
}

Status SendJob(int socket, const RankJob& job, int memory_fd) {
  const std::string text = ToJson(job);
  JobHead head;
  head.size = text.size();
  cmsghdr* control = CMSG_FIRSTHDR(&head.header);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(control), &memory_fd, sizeof(int));
  if (sendmsg(socket, &head.header, MSG_NOSIGNAL) != sizeof(head.size)) return Gone("sending a job");
  return SendAll(socket, text);
}

Result<std::pair<RankJob, UniqueFd>> ReceiveJob(int socket) {
  JobHead head;
  errno = 0;
  if (recvmsg(socket, &head.header, MSG_CMSG_CLOEXEC | MSG_WAITALL) != sizeof(head.size)) {
    return Gone("receiving a job");
  }
  UniqueFd memory;
  const cmsghdr* control = CMSG_FIRSTHDR(&head.header);
  if (control != nullptr && control->cmsg_type == SCM_RIGHTS) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(control), sizeof(int));
    memory = UniqueFd(fd);
  }
  if (memory.get() < 0 || head.size > kMostJobBytes) {
    return Status::DataLoss("no job of a rank: " + std::to_string(head.size) + " bytes");
  }
  std::string text(static_cast<size_t>(head.size), '\0');
  FASTLLM_RETURN_IF_ERROR(ReceiveAll(socket, text.data(), text.size()));
  FASTLLM_ASSIGN_OR_RETURN(RankJob job, RankJobFromJson(text));
  return std::pair(std::move(job), std::move(memory));
}

}  // namespace fastllm::runtime
