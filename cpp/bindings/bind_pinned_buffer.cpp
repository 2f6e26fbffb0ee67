// _C.PinnedBuffer. Contract: <astrai/pinned_buffer.h>.
#include "astrai/pinned_buffer.h"
#include "bindings.h"

namespace py = pybind11;

namespace astrai::bindings {

void bind_pinned_buffer(py::module_& m) {
  py::class_<PinnedBuffer>(m, "PinnedBuffer", py::buffer_protocol(), py::is_final(),
                           "Page-locked bytes, for copies that nobody waits for.")
      .def(py::init<int64_t, int>(), py::arg("n_bytes"), py::arg("device_idx") = 0)
      .def_buffer([](PinnedBuffer& buffer) {
        return py::buffer_info(reinterpret_cast<uint8_t*>(buffer.bytes()), static_cast<py::ssize_t>(buffer.n_bytes()));
      });
}

}  // namespace astrai::bindings
