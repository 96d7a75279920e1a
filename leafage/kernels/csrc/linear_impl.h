// linear and embed: how the work is split. The arithmetic is in linear_<isa>_impl.h, the contract in
// linear_layout.h. Included once per instruction set.
#include "linear_amx.h"
#include "linear_layout.h"

#if defined(LEAFAGE_AVX512)
#define LEAFAGE_HAS_AMX 1  // asked at run time
#include "linear_avx512_impl.h"
#else
#define LEAFAGE_HAS_AMX 0
#if defined(LEAFAGE_AVX2)
#include "linear_avx2_impl.h"
#elif defined(LEAFAGE_NEON)
#include "linear_neon_impl.h"
#else
#include "linear_plain_impl.h"
#endif
#endif

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {

// Row tiles of a call: all of tile_rows rows; only a tile's real rows are stored.
struct RowTiles {
    const uint8_t* base;
    TileLayout layout;
    int rows, count;
    const AmxKernels* amx;  // null: not for this call

    int rows_of(int tile) const {
        int left = rows - tile * layout.tile_rows;
        return left < layout.tile_rows ? left : layout.tile_rows;
    }
};

// Rows that a kernel computes for n real ones.
static inline int kernel_rows(int n) { return n <= 4 ? n : n <= 6 ? 6 : n <= 8 ? 8 : n <= 12 ? 12 : 16; }

// The lines that store_rows will write.
static inline void prefetch_rows(const LinearArgs& a, int first_row, int rows, int column) {
    for (int r = 0; r < rows; ++r) __builtin_prefetch(a.out + size_t(first_row + r) * size_t(a.ldo) + column, 1);
}

// One panel against the row tiles [first_tile, end_tile).
static void run_panel(const LinearArgs& a, const PackedWeight& w, int panel_index, int column, const RowTiles& x,
                      int first_tile, int end_tile, Worker& worker) {
    const TypeKernels& type = type_kernels(w.dtype);
    const Format& f = w.format();
    const uint8_t* panel = w.panel(panel_index);
    const int lanes = w.rows - panel_index * kPanel < kPanel ? w.rows - panel_index * kPanel : kPanel;
    const TileLayout& layout = x.layout;
    float* acc = reinterpret_cast<float*>(worker.scratch + kUnpackBytes);
    if (layout.tile_rows <= kDirectRows) {
        type.direct(layout.tile_rows, panel, x.base, layout, acc);
        store_rows(a, 0, x.rows, column, lanes, acc, !f.quantized());
        return;
    }
    uint8_t* unpacked = worker.scratch;
    const int units = f.quantized() ? layout.groups : layout.k;  // of k
    const int step = f.quantized() ? kUnpackGroups : kUnpackFloats;
    for (int begin = 0; begin < units; begin += step) {
        const int end = begin + step < units ? begin + step : units;
        const bool amx = x.amx && f.quantized();
        const bool with_sign = amx && !layout.precise;  // what is added to AMX's products needs unsigned codes
        const uint8_t* weights = (with_sign ? type.unpack_signed : type.unpack)(panel, layout.k, begin, end, unpacked);
        auto* amx_tile = amx ? x.amx->tile[layout.precise][f.subgroups - 1][f.has_min] : nullptr;
        for (int t = first_tile; t < end_tile; ++t) {
            const int rows = x.rows_of(t);
            const uint8_t* tile = x.base + size_t(t) * layout.bytes;
            float* tile_acc = acc + (t - first_tile) * 2 * kTileRows * kPanel;
            if (end == units) prefetch_rows(a, t * kTileRows, rows, column);
            if (amx)
                amx_tile(weights, begin, end, tile, layout, layout.aux[aux_of(f)], tile_acc);
            else
                type.tile(kernel_rows(rows), weights, begin, end, tile, layout, tile_acc);
            if (end == units) store_rows(a, t * kTileRows, rows, column, lanes, tile_acc, !f.quantized());
        }
    }
}

// How many panels a task has. Few rows wait for memory, which wants long runs: a new run starts with nothing
// fetched, and what was fetched ahead at its end is another thread's. Many rows compute: smaller tasks, so that a
// delayed thread costs little.
static inline int panels_per_task(int panels, int row_blocks, size_t panel_bytes, bool direct, int threads) {
    if (threads == 1) return panels;
    int tasks = threads * 8 / row_blocks;
    if (direct) {
        const int64_t per_thread = int64_t(panels) * int64_t(panel_bytes) / threads;
        tasks = threads * int(per_thread < kRunBytes ? 1 : per_thread / kRunBytes);
    }
    return tasks < 1 ? panels : int(ceil_div(panels, tasks));
}

// The panel with number `index` of all weights.
static inline const uint8_t* find_panel(const LinearArgs& a, int index) {
    int i = 0;
    for (; index >= a.weights[i]->panels; ++i) index -= a.weights[i]->panels;
    return a.weights[i]->panel(index);
}

static void linear(const LinearArgs& a, Worker& worker) {
    if (a.rows <= 0) return;
    const int k = a.weights[0]->cols;
    const bool direct = a.rows <= kDirectRows;
    unsigned mask = 0;
    int panels = 0;
    for (int i = 0; i < a.num_weights; ++i) {
        mask |= 1u << aux_of(a.weights[i]->format());
        panels += a.weights[i]->panels;
    }
    if (a.precise && (mask & kQuantizedMask)) mask |= 1u << kPrecise;
    const size_t panel_bytes = a.weights[0]->panel_bytes;
    if (direct) {  // the beginning of this thread's first task
        const int first = worker.index * panels_per_task(panels, 1, panel_bytes, direct, worker.count);
        if (first < panels) fetch_start(find_panel(a, first));
    }
    const int tile_rows = direct ? kernel_rows(a.rows) : kTileRows;
    RowTiles x{a.shared, TileLayout(tile_rows, k, mask), a.rows, int(ceil_div(a.rows, tile_rows)), nullptr};
    if (LEAFAGE_HAS_AMX && a.rows > kDirectRows && mask != 1u << kFloatRows) x.amx = amx_kernels();
    if (a.rows <= kPrivateRows && x.layout.bytes <= kPrivateBytes) {
        // Cheaper for every thread to quantize the few rows itself than to wait for the others.
        uint8_t* tile = worker.scratch + kUnpackBytes + kAccBytes;
        fill_tile(a.x, a.ldx, a.rows, mask, x.layout, 0, 1, tile);
        x.base = tile;
    } else {
        const int parts = int(ceil_div(worker.count, x.count));
        for (int i = worker.index; i < x.count * parts; i += worker.count) {
            const int t = i / parts;
            const float* from = a.x + size_t(t) * size_t(tile_rows) * size_t(a.ldx);
            uint8_t* tile = a.shared + size_t(t) * x.layout.bytes;
            fill_tile(from, a.ldx, x.rows_of(t), mask, x.layout, i % parts, parts, tile);
        }
        worker.barrier();
    }

    if (x.amx) x.amx->begin();
    // A task is a run of panels against a block of row tiles.
    const int row_blocks = int(ceil_div(x.count, kBlockTiles));
    const int run = panels_per_task(panels, row_blocks, panel_bytes, direct, worker.count);
    const int runs = int(ceil_div(panels, run));
    // The first task of each thread is its own, so that it could be fetched ahead.
    for (int64_t task = worker.index; task < int64_t(runs) * row_blocks; task = worker.count + worker.take()) {
        int first_tile = int(task / runs) * kBlockTiles;
        int end_tile = first_tile + kBlockTiles < x.count ? first_tile + kBlockTiles : x.count;
        int begin = int(task % runs) * run, end = begin + run < panels ? begin + run : panels;
        int base = 0, column = 0;
        for (int i = 0; i < a.num_weights; ++i) {
            const PackedWeight& w = *a.weights[i];
            int from = begin - base > 0 ? begin - base : 0;
            int to = end - base < w.panels ? end - base : w.panels;
            for (int p = from; p < to; ++p)
                run_panel(a, w, p, column + p * kPanel, x, first_tile, end_tile, worker);
            base += w.panels;
            column += w.rows;
        }
    }
    if (x.amx) x.amx->end();
}

// Every line that holds something of a row: a row is one lane of its panel, spread over all of its lines.
static inline void fetch_row(const PackedWeight& table, int row) {
    const uint8_t* panel = table.panel(row / kPanel);
    for (size_t at = 0; at < table.panel_bytes; at += 64) __builtin_prefetch(panel + at);
}

// Rows of the table: every thread takes whole rows.
static void embed(const EmbedArgs& a, Worker& worker) {
    const int cols = a.table->cols;
    for (int64_t r; (r = worker.take()) < a.rows;) {
        fetch_row(*a.table, a.token_ids[r]);
        float* out = a.out + size_t(r) * size_t(a.ldo);
        dequantize_row(*a.table, a.token_ids[r], out);
        if (a.scale != 1.0f)
            for (int k = 0; k < cols; ++k) out[k] *= a.scale;
    }
}

}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage

#undef LEAFAGE_INLINE
#undef LEAFAGE_HAS_AMX
