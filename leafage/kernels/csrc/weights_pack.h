// From the file's blocks to panels, and codes back out of a panel.
#pragma once
#include "weights.h"

namespace leafage {

// A weight to fill: `data` is zeroed memory, which is weight->data.
struct PackJob {
    const PackedWeight* weight;
    uint8_t* data;
    const uint8_t* raw;
};

// Fill all panels of all jobs.
void pack_panels(const std::vector<PackJob>& jobs, int num_threads);

// The codes of one lane in a group of a panel: byte t of quads[j] is the code of input 4j + t.
void read_codes(int bits, const uint8_t* group, int lane, uint32_t quads[8]);

}  // namespace leafage
