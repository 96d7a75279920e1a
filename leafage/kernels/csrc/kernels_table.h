// Included once per instruction set by kernels_<isa>.cpp: compiles the ops and fills the table.
#include "attention_impl.h"
#include "elementwise_impl.h"
#include "linear_impl.h"
#include "sampler_impl.h"

namespace leafage {

const Kernels* LEAFAGE_ISA_TABLE() {
    namespace isa = LEAFAGE_ISA_NAMESPACE;
    static const Kernels table{
        LEAFAGE_ISA_NAME, isa::linear,  isa::embed, isa::kv_write, isa::attention, isa::rms_norm,
        isa::rope,        isa::act_mul, isa::add,   isa::softcap, isa::sample,
    };
    return &table;
}

}  // namespace leafage
