// Which decode rows share a prefix: their block tables begin with the same blocks. The partitions of the prefix are
// computed for several rows at once, so K and V are loaded once for all of them; each row's running state is kept,
// and the row goes on from it alone. The bits are the same: a row's partitions are merged in order either way.
#pragma once
#include "attention.h"

namespace leafage {

// Items members[first] .. members[first + count - 1] share partitions 0 .. parts - 1.
struct SharedPrefix {
    int first, count, parts;
};

struct Prefixes {
    const int32_t* members;      // item numbers
    const SharedPrefix* shared;  // num_shared of them, each item at most once
    int num_shared, num_rows;    // prefixes, and rows that share one
    // Per item: partitions that are computed with others, and which of the kept states is its own.
    const int32_t* parts;
    const int32_t* place;
};

// What a task is: `rows_together` rows at most, one of `heads` KV heads; on so many threads. A prefix is shared only
// where that is fewer rounds of tasks than its rows alone. max_members: rows whose state there is room for. The result lives
// until the next call on this thread, and is that of the last call when args.step is the same. Not in the sources that are compiled per instruction set: they must not instantiate
// anything of the standard library, whose code the linker would then share with slower CPUs.
Prefixes find_prefixes(const AttentionArgs& args, int max_members, int rows_together, int heads, int threads);

}  // namespace leafage
