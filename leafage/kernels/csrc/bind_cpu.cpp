#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "cpu.h"

namespace nb = nanobind;

namespace leafage {

void bind_cpu(nb::module_& m) {
    kernels();  // chosen at import, where a wrong LEAFAGE_KERNELS is refused
    m.def("variants", &variants, "Instruction-set variants that are built and run on this CPU, best first.");
    m.def("variant", [] { return std::string(kernels().name); });
    m.def("set_variant", [](const std::string& name) { set_variant(named_variant("the variant", name)); });
    m.def("cpu_features", &cpu_features, "Features of this CPU that the kernels ask for.");
}

}  // namespace leafage
