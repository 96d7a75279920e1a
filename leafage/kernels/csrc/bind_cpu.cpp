#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "cpu.h"

namespace nb = nanobind;

namespace leafage {

void bind_cpu(nb::module_& m) {
    kernels();  // chosen at import, where a wrong LEAFAGE_KERNELS is refused
    m.def("variants", &variants, "Instruction-set variants that are built and run on this CPU, best first.");
    m.def("variant", [] { return std::string(kernels().name); });
    m.def("set_variant", [](const std::string& name) {
        const Kernels* table = find_variant(name);
        if (table == nullptr) throw std::invalid_argument("no such kernel variant here: " + name);
        set_variant(*table);
    });
    m.def("cpu_features", &cpu_features, "Features of this CPU that the kernels ask for.");
}

}  // namespace leafage
