// Binds TokenTable, TextStreams and TextEvent.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "astrai/token_text.h"
#include "bindings.h"
#include "int_array.h"

namespace py = pybind11;

namespace astrai::bindings {

namespace {

// Raises UnicodeEncodeError (a ValueError) for a str that holds lone surrogates.
std::string utf8_of(const py::str& text) {
  Py_ssize_t n_bytes = 0;
  const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &n_bytes);
  if (bytes == nullptr) throw py::error_already_set();
  return std::string(bytes, static_cast<std::size_t>(n_bytes));
}

std::vector<std::string> utf8_of(const std::vector<py::str>& texts) {
  std::vector<std::string> converted;
  for (const py::str& text : texts) converted.push_back(utf8_of(text));
  return converted;
}

// TextEvent is a struct sequence (a tuple with named fields): every field is made once, and reading one calls nothing.
// push_batch makes one for each stream that has something to say; benchmarks/core/bench_text.py times it.
PyStructSequence_Field kEventFields[] = {
    {"handle", "the stream"},
    {"text", "what this step released; may be empty when the stream ends"},
    {"n_tokens", "pushed so far, the end token included"},
    {"finish", "None, 'stop' or 'length'"},
    {"stop_string", "the stop string that ended the stream, or None"},
    {"stop_token", "the token id that ended the stream, or None"},
    {nullptr, nullptr},
};
PyStructSequence_Desc kEventDesc = {"astrai._C.TextEvent", "What one stream has to say after a step.", kEventFields, 6};

PyObject* to_str(const std::string& text) {
  PyObject* str = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr);
  if (str == nullptr) throw py::error_already_set();
  return str;
}

PyObject* finish_name(FinishReason finish) {
  if (finish == FinishReason::kNone) return py::none().release().ptr();
  return py::str(finish == FinishReason::kStop ? "stop" : "length").release().ptr();
}

py::list to_list(const std::vector<TextEvent>& events, PyTypeObject* event_type) {
  py::list result(events.size());
  for (std::size_t i = 0; i < events.size(); ++i) {
    const TextEvent& event = events[i];
    PyObject* fields = PyStructSequence_New(event_type);
    if (fields == nullptr) throw py::error_already_set();
    PyList_SET_ITEM(result.ptr(), static_cast<Py_ssize_t>(i), fields);  // owns it from here, also when a field throws
    PyStructSequence_SetItem(fields, 0, py::int_(event.handle).release().ptr());
    PyStructSequence_SetItem(fields, 1, to_str(event.text));
    PyStructSequence_SetItem(fields, 2, py::int_(event.n_tokens).release().ptr());
    PyStructSequence_SetItem(fields, 3, finish_name(event.finish));
    PyStructSequence_SetItem(fields, 4, event.stop_string ? to_str(*event.stop_string) : py::none().release().ptr());
    PyStructSequence_SetItem(fields, 5, py::cast(event.stop_token).release().ptr());
  }
  return result;
}

// The text of each handle, "" where its stream has nothing to say, and the events of the streams that ended. Of a handle
// that repeats, one has all the text. A step makes a str for each running request, and an event for hardly any.
py::tuple to_texts(const IntArray<std::int64_t>& handles, std::vector<TextEvent>&& events, PyTypeObject* event_type) {
  py::list texts(handles.size());
  std::vector<TextEvent> ends;
  auto event = events.begin();  // in the order of the handles
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const bool is_telling = event != events.end() && event->handle == handles.data()[i];
    PyList_SET_ITEM(texts.ptr(), static_cast<Py_ssize_t>(i), to_str(is_telling ? event->text : std::string()));
    if (!is_telling) continue;
    if (event->finish != FinishReason::kNone) ends.push_back(std::move(*event));
    ++event;
  }
  return py::make_tuple(std::move(texts), to_list(ends, event_type));
}

std::int64_t checked_id(const TokenTable& table, std::int64_t token_id) {
  if (!table.contains(token_id)) {
    throw py::index_error("TokenTable: token id " + std::to_string(token_id) + " is outside 0 to " +
                          std::to_string(table.n_tokens() - 1));
  }
  return token_id;
}

}  // namespace

void bind_token_text(py::module_& m) {
  py::class_<TokenTable, std::shared_ptr<TokenTable>>(m, "TokenTable", py::is_final(), "The bytes of every token id.")
      .def(py::init([](const std::vector<py::bytes>& pieces, const py::bytes& special) {
             const std::string flags = special;
             return std::make_shared<TokenTable>(std::vector<std::string>(pieces.begin(), pieces.end()),
                                                 std::vector<std::uint8_t>(flags.begin(), flags.end()));
           }),
           py::arg("pieces"), py::arg("special"))
      .def(py::init([](const std::vector<py::bytes>& pieces, const std::vector<bool>& special) {
             return std::make_shared<TokenTable>(std::vector<std::string>(pieces.begin(), pieces.end()),
                                                 std::vector<std::uint8_t>(special.begin(), special.end()));
           }),
           py::arg("pieces"), py::arg("special"))
      .def("__len__", &TokenTable::n_tokens)
      .def("piece",
           [](const TokenTable& table, std::int64_t token_id) {
             return py::bytes(std::string(table.piece(checked_id(table, token_id))));
           },
           py::arg("token_id"), "The bytes of one id.")
      .def("is_special",
           [](const TokenTable& table, std::int64_t token_id) { return table.is_special(checked_id(table, token_id)); },
           py::arg("token_id"), "Whether an id is a control token.");

  PyTypeObject* event_type = PyStructSequence_NewType(&kEventDesc);
  if (event_type == nullptr) throw py::error_already_set();
  m.attr("TextEvent") = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(event_type));

  py::class_<TextStreams>(m, "TextStreams", py::is_final(), "The texts of all running requests.")
      .def(py::init([](std::shared_ptr<TokenTable> table) { return TextStreams(std::move(table)); }),
           py::arg("table").none(false))
      .def("open",
           [](TextStreams& streams, const std::vector<py::str>& stop, const IntArray<std::int64_t>& stop_ids,
              std::int64_t max_tokens, std::int64_t min_tokens, bool include_stop, bool skip_special,
              bool strip_leading_space, const IntArray<std::int64_t>& shown_ids) {
             TextOptions options;
             options.stops = utf8_of(stop);
             options.stop_ids.assign(stop_ids.data(), stop_ids.data() + stop_ids.size());
             options.max_tokens = max_tokens;
             options.min_tokens = min_tokens;
             options.include_stop = include_stop;
             options.skip_special = skip_special;
             options.strip_leading_space = strip_leading_space;
             options.shown_ids.assign(shown_ids.data(), shown_ids.data() + shown_ids.size());
             return streams.open(std::move(options));
           },
           py::arg("stop"), py::arg("stop_ids"), py::arg("max_tokens"), py::arg("min_tokens") = 0,
           py::arg("include_stop") = false, py::arg("skip_special") = true, py::arg("strip_leading_space") = false,
           py::arg("shown_ids") = py::tuple(), "Starts a stream and returns its handle.")
      .def("push_batch",
           [event_type](TextStreams& streams, const IntArray<std::int64_t>& handles,
                        const IntArray<std::int64_t>& token_ids) {
             const auto events =
                 streams.push_batch(handles.data(), handles.size(), token_ids.data(), token_ids.size());
             return to_list(events, event_type);
           },
           py::arg("handles"), py::arg("token_ids"), "Pushes tokens; the events of streams that have something to say.")
      .def("push_texts",
           [event_type](TextStreams& streams, const IntArray<std::int64_t>& handles,
                        const IntArray<std::int64_t>& token_ids) {
             return to_texts(handles,
                             streams.push_batch(handles.data(), handles.size(), token_ids.data(), token_ids.size()),
                             event_type);
           },
           py::arg("handles"), py::arg("token_ids"), "Pushes tokens; the text of each handle, events of those that ended.")
      .def("finish", &TextStreams::finish, py::arg("handle"), "Ends a stream; the text it held.")
      .def("text", &TextStreams::text, py::arg("handle"), "Everything released so far.")
      .def("close", &TextStreams::close, py::arg("handle"), "Drops a stream; its handle stays invalid.")
      .def_property_readonly("n_open", &TextStreams::n_open);
}

}  // namespace astrai::bindings
