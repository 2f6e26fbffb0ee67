#include "astrai/http_chunks.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <stdexcept>

namespace astrai {

namespace {

// A chunk in the three parts that lie at different places: its size in hexadecimal, the payload, the line end.
class FramedChunk {
 public:
  explicit FramedChunk(const HttpChunk& chunk) : payload_(chunk.payload) {
    char* end = std::to_chars(head_.data(), head_.data() + kMaxDigits, payload_.size(), 16).ptr;
    *end++ = '\r';
    *end++ = '\n';
    head_len_ = static_cast<std::size_t>(end - head_.data());
  }

  // Bytes that the socket took; 0 when it is full or broken.
  std::size_t send_to(int fd) const {
    std::array<iovec, 3> parts{};
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::string_view bytes = part(i);
      parts[i] = {const_cast<char*>(bytes.data()), bytes.size()};  // sendmsg only reads
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    ssize_t n_sent = -1;
    do {
      n_sent = ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (n_sent < 0 && errno == EINTR);
    return n_sent < 0 ? 0 : static_cast<std::size_t>(n_sent);
  }

  std::size_t size() const { return head_len_ + payload_.size() + kLineEnd.size(); }

  std::string bytes_from(std::size_t offset) const {
    std::string bytes;
    bytes.reserve(size());
    for (std::size_t i = 0; i < 3; ++i) bytes += part(i);
    return bytes.substr(offset);
  }

 private:
  static constexpr std::size_t kMaxDigits = 2 * sizeof(std::size_t);
  static constexpr std::string_view kLineEnd = "\r\n";

  std::string_view part(std::size_t i) const {
    return i == 0 ? std::string_view(head_.data(), head_len_) : i == 1 ? payload_ : kLineEnd;
  }

  std::array<char, kMaxDigits + kLineEnd.size()> head_{};
  std::size_t head_len_ = 0;
  std::string_view payload_;
};

}  // namespace

std::vector<UnsentChunk> send_http_chunks(const std::vector<HttpChunk>& chunks) {
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].payload.empty()) {
      throw std::invalid_argument("send_http_chunks: payloads[" + std::to_string(i) +
                                  "] is empty, which would end the body; leave it out");
    }
  }
  std::vector<UnsentChunk> unsent;
  std::vector<int> behind;  // sockets that have not taken all: what follows must not overtake the rest
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const FramedChunk chunk(chunks[i]);
    const int fd = chunks[i].fd;
    const bool is_behind = std::find(behind.begin(), behind.end(), fd) != behind.end();
    const std::size_t n_sent = is_behind ? 0 : chunk.send_to(fd);
    if (n_sent == chunk.size()) continue;
    if (!is_behind) behind.push_back(fd);
    unsent.push_back({i, chunk.bytes_from(n_sent)});
  }
  return unsent;
}

}  // namespace astrai
