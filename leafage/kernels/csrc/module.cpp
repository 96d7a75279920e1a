// Python bindings. Checks of shape, dtype and contiguity are in kernels/native.py: nothing here is called
// with anything unchecked.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace leafage {
void bind_cpu(nb::module_& m);
void bind_weights(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_inputs(nb::module_& m);
void bind_program(nb::module_& m);
void bind_floors(nb::module_& m);
void bind_sampler(nb::module_& m);
}  // namespace leafage

NB_MODULE(_native, m) {
    leafage::bind_cpu(m);
    leafage::bind_weights(m);
    leafage::bind_attention(m);
    leafage::bind_inputs(m);
    leafage::bind_program(m);
    leafage::bind_floors(m);
    leafage::bind_sampler(m);
}
