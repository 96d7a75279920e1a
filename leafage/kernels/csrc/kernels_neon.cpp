#define LEAFAGE_ISA_NAMESPACE isa_neon
#define LEAFAGE_ISA_NAME "neon"
#define LEAFAGE_ISA_TABLE kernels_neon
#include "kernels.h"
#if defined(LEAFAGE_NEON)
#include "kernels_table.h"
#else
namespace leafage {
const Kernels* kernels_neon() { return nullptr; }
}
#endif
