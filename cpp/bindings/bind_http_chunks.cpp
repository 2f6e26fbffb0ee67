// Binds send_http_chunks.
#include "astrai/http_chunks.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <vector>

#include "bindings.h"

namespace py = pybind11;

namespace astrai::bindings {

namespace {

std::vector<HttpChunk> chunks_of(const std::vector<int>& fds, const std::vector<py::bytes>& payloads) {
  if (fds.size() != payloads.size()) {
    throw std::invalid_argument("send_http_chunks: " + std::to_string(fds.size()) + " fds for " +
                                std::to_string(payloads.size()) + " payloads");
  }
  std::vector<HttpChunk> chunks;
  chunks.reserve(fds.size());
  for (std::size_t i = 0; i < fds.size(); ++i) {
    chunks.push_back({fds[i], static_cast<std::string_view>(payloads[i])});
  }
  return chunks;
}

}  // namespace

void bind_http_chunks(py::module_& m) {
  m.def(
      "send_http_chunks",
      // Vectors of their own: another thread may change a list of Python's while the chunks are sent.
      [](const std::vector<int>& fds, const std::vector<py::bytes>& payloads) {
        const std::vector<HttpChunk> chunks = chunks_of(fds, payloads);
        std::vector<UnsentChunk> unsent;
        {
          py::gil_scoped_release release;  // a system call for each chunk
          unsent = send_http_chunks(chunks);
        }
        py::list rest;
        for (const UnsentChunk& chunk : unsent) rest.append(py::make_tuple(chunk.idx, py::bytes(chunk.bytes)));
        return rest;
      },
      py::arg("fds"), py::arg("payloads"), "Sends each payload as one HTTP chunk; (index, bytes) of what was not taken.");
}

}  // namespace astrai::bindings
