#define LEAFAGE_ISA_NAMESPACE isa_plain
#define LEAFAGE_ISA_NAME "plain"
#define LEAFAGE_ISA_TABLE kernels_plain
#include "kernels.h"
#if 1
#include "kernels_table.h"
#else
namespace leafage {
const Kernels* kernels_plain() { return nullptr; }
}
#endif
