// What a step says to its streams, written to their sockets: one call for all of them, which an interpreter makes
// without its lock. HTTP/1.1 chunks (RFC 9112, section 7.1) over plain TCP or UNIX sockets; no TLS.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace astrai {

struct HttpChunk {
  int fd = -1;               // a connected stream socket
  std::string_view payload;  // not empty: an empty chunk would end the body
};

// What a socket did not take.
struct UnsentChunk {
  std::size_t idx = 0;  // of the chunk
  std::string bytes;    // the rest of it, its framing included; all of it after another unsent one of the same socket
};

// Sends each payload as one chunk, in order, and waits for no socket. Returns what was not taken, in order: all of a
// chunk whose socket is full or broken, for the caller to write as it writes elsewhere, which meets the same error.
// Throws std::invalid_argument naming an empty payload, before a byte is sent. Raises no SIGPIPE. Sockets may be
// shared with other writers as long as those do not write meanwhile.
std::vector<UnsentChunk> send_http_chunks(const std::vector<HttpChunk>& chunks);

}  // namespace astrai
