// send_http_chunks: framing, order, and sockets that are full or broken.
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <stdexcept>
#include <string>
#include <vector>

#include "astrai/http_chunks.h"

using namespace astrai;

namespace {

class SocketPair {
 public:
  SocketPair() { REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends_.data()) == 0); }
  ~SocketPair() {
    close_reader();
    ::close(ends_[0]);
  }
  SocketPair(const SocketPair&) = delete;
  SocketPair& operator=(const SocketPair&) = delete;

  int writer() const { return ends_[0]; }
  void close_reader() {
    if (ends_[1] >= 0) ::close(ends_[1]);
    ends_[1] = -1;
  }
  // All that lies in the socket.
  std::string read() const {
    std::string text;
    std::array<char, 4096> part{};
    for (;;) {
      const ssize_t n = ::recv(ends_[1], part.data(), part.size(), MSG_DONTWAIT);
      if (n <= 0) return text;
      text.append(part.data(), static_cast<std::size_t>(n));
    }
  }

 private:
  std::array<int, 2> ends_{};
};

}  // namespace

TEST_CASE("http chunks: each payload is a chunk of its own, in order, on its own socket") {
  const SocketPair one, other;
  const std::string wide(0x1234, 'x');
  const std::vector<HttpChunk> chunks{{one.writer(), "a"}, {other.writer(), wide}, {one.writer(), "0123456789"}};
  CHECK(send_http_chunks(chunks).empty());
  CHECK(one.read() == "1\r\na\r\na\r\n0123456789\r\n");
  CHECK(other.read() == "1234\r\n" + wide + "\r\n");
}

TEST_CASE("http chunks: what a full socket does not take is returned, and nothing overtakes it") {
  const SocketPair full, free;
  const std::string large(8 << 20, 'x');
  const std::vector<HttpChunk> chunks{{full.writer(), large}, {full.writer(), "after"}, {free.writer(), "free"}};
  const std::vector<UnsentChunk> unsent = send_http_chunks(chunks);
  REQUIRE(unsent.size() == 2);
  CHECK(unsent[0].idx == 0);
  CHECK(full.read() + unsent[0].bytes == "800000\r\n" + large + "\r\n");
  CHECK(unsent[1].idx == 1);
  CHECK(unsent[1].bytes == "5\r\nafter\r\n");
  CHECK(free.read() == "4\r\nfree\r\n");
}

TEST_CASE("http chunks: a broken socket takes nothing and stops no other") {
  SocketPair broken;
  const SocketPair sound;
  broken.close_reader();
  const std::vector<UnsentChunk> unsent =
      send_http_chunks({{broken.writer(), "lost"}, {-1, "closed"}, {sound.writer(), "kept"}});
  REQUIRE(unsent.size() == 2);
  CHECK(unsent[0].bytes == "4\r\nlost\r\n");
  CHECK(unsent[1].bytes == "6\r\nclosed\r\n");
  CHECK(sound.read() == "4\r\nkept\r\n");
}

TEST_CASE("http chunks: an empty payload is refused before a byte is sent") {
  const SocketPair socket;
  CHECK_THROWS_AS(send_http_chunks({{socket.writer(), "a"}, {socket.writer(), ""}}), std::invalid_argument);
  CHECK(socket.read().empty());
}
