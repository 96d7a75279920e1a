// What all users of Intel AMX share: asking the operating system for it, and the layout of the tile registers.
#pragma once
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace leafage {

// Tile data is off until a process asks for it; threads that start later inherit the permission.
static inline bool amx_granted() {
    constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

// The 64 bytes that the CPU reads.
struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    void set(int tile, int tile_rows, int bytes) {
        rows[tile] = uint8_t(tile_rows);
        row_bytes[tile] = uint16_t(bytes);
    }
    // GCC's intrinsic declares 8 of the 64 bytes as read and drops the other stores.
    void load() const { asm volatile("ldtilecfg %0" ::"m"(*this)); }
};
static_assert(sizeof(TileConfig) == 64, "as the CPU reads it");

}  // namespace leafage
