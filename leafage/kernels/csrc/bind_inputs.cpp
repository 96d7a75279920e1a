// From the lists of a batch to the arrays of kernels/step_inputs.py. In C++ because at batch 1 a step's memory
// traffic leaves nothing of Python in the caches: what matters is how little is touched, not how fast it runs.
#include <nanobind/nanobind.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace nb = nanobind;
using namespace nb::literals;

namespace leafage {

namespace {

int32_t to_int(PyObject* value, const char* name) {
    long number = PyLong_AsLong(value);
    if (number == -1 && PyErr_Occurred()) throw nb::python_error();
    if (number < INT32_MIN || number > INT32_MAX)
        throw std::invalid_argument(std::string("expected ") + name + " as 32-bit integers, got " +
                                    std::to_string(number));
    return int32_t(number);
}

PyObject* list_at(const nb::list& lists, Py_ssize_t i, const char* name) {
    PyObject* list = PyList_GET_ITEM(lists.ptr(), i);
    if (!PyList_Check(list)) throw std::invalid_argument(std::string("expected ") + name + " as a list of lists");
    return list;
}

Py_ssize_t total_length(const nb::list& lists, const char* name) {
    Py_ssize_t total = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(lists.ptr()); ++i) total += PyList_GET_SIZE(list_at(lists, i, name));
    return total;
}

nb::tuple flatten(nb::list token_ids, nb::list starts, nb::list write_from, nb::list tables, nb::list logit_counts,
                  int block_size) {
    const Py_ssize_t items = PyList_GET_SIZE(token_ids.ptr());
    for (const nb::list* list : {&starts, &write_from, &tables, &logit_counts})
        if (PyList_GET_SIZE(list->ptr()) != items)
            throw std::invalid_argument("expected lists of " + std::to_string(items) + " items, got one of " +
                                        std::to_string(PyList_GET_SIZE(list->ptr())));
    if (block_size < 1) throw std::invalid_argument("expected block_size >= 1, got " + std::to_string(block_size));
    const Py_ssize_t rows = total_length(token_ids, "token_ids"), entries = total_length(tables, "tables");
    Py_ssize_t logit_rows = 0;
    for (Py_ssize_t i = 0; i < items; ++i) {
        int32_t count = to_int(PyList_GET_ITEM(logit_counts.ptr(), i), "logit_counts");
        Py_ssize_t most = PyList_GET_SIZE(PyList_GET_ITEM(token_ids.ptr(), i));
        if (count < 0 || count > most)
            throw std::invalid_argument("expected logit_counts in [0, " + std::to_string(most) + "], got " +
                                        std::to_string(count));
        logit_rows += count;
    }
    const Py_ssize_t ints = 3 * rows + 4 * items + logit_rows + entries;
    nb::object data = nb::steal(PyBytes_FromStringAndSize(nullptr, ints * Py_ssize_t(sizeof(int32_t))));
    if (!data.is_valid()) throw nb::python_error();
    int32_t* token = reinterpret_cast<int32_t*>(PyBytes_AS_STRING(data.ptr()));
    int32_t *position = token + rows, *slot = position + rows;
    int32_t *item_row = slot + rows, *item_num_rows = item_row + items, *item_start = item_num_rows + items;
    int32_t *table_offset = item_start + items, *logit_row = table_offset + items, *table = logit_row + logit_rows;
    int32_t row = 0, offset = 0;
    for (Py_ssize_t i = 0; i < items; ++i) {
        PyObject *ids = list_at(token_ids, i, "token_ids"), *blocks = list_at(tables, i, "tables");
        const int32_t count = int32_t(PyList_GET_SIZE(ids)), num_blocks = int32_t(PyList_GET_SIZE(blocks));
        const int32_t start = to_int(PyList_GET_ITEM(starts.ptr(), i), "starts");
        const int32_t first_write = to_int(PyList_GET_ITEM(write_from.ptr(), i), "write_from");
        if (start < 0 || (int64_t(start) + count + block_size - 1) / block_size > num_blocks)
            throw std::invalid_argument("expected a block table that covers tokens " + std::to_string(start) + " to " +
                                        std::to_string(int64_t(start) + count) + " of item " + std::to_string(i) +
                                        ", got " + std::to_string(num_blocks) + " blocks");
        for (int32_t b = 0; b < num_blocks; ++b) table[b] = to_int(PyList_GET_ITEM(blocks, b), "tables");
        for (int32_t t = 0; t < count; ++t) {
            const int32_t p = start + t;
            token[t] = to_int(PyList_GET_ITEM(ids, t), "token_ids");
            position[t] = p;
            slot[t] = p < first_write ? -1 : table[p / block_size] * block_size + p % block_size;
        }
        item_row[i] = row;
        item_num_rows[i] = count;
        item_start[i] = start;
        table_offset[i] = offset;
        for (int32_t n = to_int(PyList_GET_ITEM(logit_counts.ptr(), i), "logit_counts"); n > 0; --n)
            *logit_row++ = row + count - n;
        token += count, position += count, slot += count, table += num_blocks;
        row += count, offset += num_blocks;
    }
    return nb::make_tuple(data, rows, items, logit_rows);
}

}  // namespace

void bind_inputs(nb::module_& m) {
    m.def("flatten", &flatten, "token_ids"_a, "starts"_a, "write_from"_a, "tables"_a, "logit_counts"_a, "block_size"_a,
          "(data, num_rows, num_items, num_logit_rows) of StepInputs, from one entry per item; the last logit_counts[i] "
          "rows of an item need logits.");
}

}  // namespace leafage
