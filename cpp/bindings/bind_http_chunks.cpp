// Binds send_http_chunks.
#include "astrai/http_chunks.h"

#include <pybind11/pybind11.h>

#include <stdexcept>
#include <vector>

#include "bindings.h"

namespace py = pybind11;

namespace astrai::bindings {

namespace {

// Views of the payloads, which the caller's list keeps alive.
std::vector<HttpChunk> chunks_of(const py::list& fds, const py::list& payloads) {
  if (fds.size() != payloads.size()) {
    throw std::invalid_argument("send_http_chunks: " + std::to_string(fds.size()) + " fds for " +
                                std::to_string(payloads.size()) + " payloads");
  }
  std::vector<HttpChunk> chunks;
  chunks.reserve(fds.size());
  for (std::size_t i = 0; i < fds.size(); ++i) {
    chunks.push_back({py::cast<int>(fds[i]), static_cast<std::string_view>(py::cast<py::bytes>(payloads[i]))});
  }
  return chunks;
}

}  // namespace

void bind_http_chunks(py::module_& m) {
  m.def(
      "send_http_chunks",
      [](const py::list& fds, const py::list& payloads) {
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
