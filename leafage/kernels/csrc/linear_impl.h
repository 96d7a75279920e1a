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

// Up to here, weights go straight from the panel into the dot products.
#if defined(LEAFAGE_AVX512)
constexpr int kDirectRows = 16;
#else
constexpr int kDirectRows = 8;
#endif

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
static inline int kernel_rows(int n) { return n <= 4 ? n : n <= 6 ? 6 : n <= 8 ? 8 : n + n % 2; }

// The lines that store_rows will write.
static inline void prefetch_rows(const LinearArgs& a, int first_row, int rows, int column) {
    for (int r = 0; r < rows; ++r) __builtin_prefetch(a.out + size_t(first_row + r) * size_t(a.ldo) + column, 1);
}

// Fetches part `part` of `parts` of what is unpacked next into L2: all at once would wait for L1's fill buffers.
static inline void fetch_share(const uint8_t* from, size_t bytes, int part, int parts) {
    const size_t end = bytes * size_t(part + 1) / size_t(parts);
    for (size_t i = bytes * size_t(part) / size_t(parts); i < end; i += 64) __builtin_prefetch(from + i, 0, 2);
}

// Real outputs of a panel.
static inline int lanes_of(const PackedWeight& w, int panel) {
    const int left = w.rows - panel * kPanel;
    return left < kPanel ? left : kPanel;
}

static inline int num_panels(int num_weights, const PackedWeight* const* weights) {
    int panels = 0;
    for (int i = 0; i < num_weights; ++i) panels += weights[i]->panels;
    return panels;
}

// A panel of several weights side by side.
struct Panel {
    const PackedWeight* weight;
    int index, column;  // in its weight; its first output

    Panel(const PackedWeight* const* weights, int number) : index(number), column(0) {
        int i = 0;
        for (; index >= weights[i]->panels; ++i) {
            index -= weights[i]->panels;
            column += weights[i]->rows;
        }
        weight = weights[i];
        column += index * kPanel;
    }
    const uint8_t* data() const { return weight->panel(index); }
};

// The beginning of this member's run.
static inline const uint8_t* first_panel(int num_weights, const PackedWeight* const* weights, const Worker& worker) {
    return Panel(weights, worker.first_of_run(num_panels(num_weights, weights), worker.index)).data();
}

// Few rows wait for memory: each member reads its panels as one stream, at whose end it fetches the next call's.
static void few_rows(const LinearArgs& a, const RowTiles& x, Worker& worker) {
    float* acc = reinterpret_cast<float*>(worker.scratch + kUnpackBytes);
    const int end = worker.first_of_run(worker.tasks, worker.index + 1);
    for (int first, last; worker.next_of_run(first, last);)
        for (int number = first; number < last; ++number) {
            const Panel panel(a.weights, number);
            const PackedWeight& w = *panel.weight;
            // Panels follow each other in memory up to the end of the matrix or of the run.
            const int in_matrix = w.panels - panel.index, in_run = number < end ? end - number : in_matrix;
            Stream stream{panel.data() + size_t(in_matrix < in_run ? in_matrix : in_run) * w.panel_bytes, 0};
            if (in_matrix < in_run)
                stream.jump = Panel(a.weights, number + in_matrix).data() - stream.end;
            else if (number < end && a.num_next > 0)
                stream.jump = first_panel(a.num_next, a.next, worker) - stream.end;
            type_kernels(w.dtype).direct(x.layout.tile_rows, panel.data(), stream, x.base, x.layout, acc);
            store_rows(a, 0, x.rows, panel.column, lanes_of(w, panel.index), acc, !w.format().quantized());
        }
}

// One panel against the row tiles [first_tile, end_tile).
static void run_panel(const LinearArgs& a, const Panel& panel, const RowTiles& x, int first_tile, int end_tile,
                      Worker& worker) {
    const PackedWeight& w = *panel.weight;
    const TypeKernels& type = type_kernels(w.dtype);
    const Format& f = w.format();
    const int lanes = lanes_of(w, panel.index);
    const TileLayout& layout = x.layout;
    float* acc = reinterpret_cast<float*>(worker.scratch + kUnpackBytes);
    uint8_t* unpacked = worker.scratch;
    const int units = f.quantized() ? layout.groups : layout.k;  // of k
    const int step = f.quantized() ? kUnpackGroups : kUnpackFloats;
    for (int begin = 0; begin < units; begin += step) {
        const int end = begin + step < units ? begin + step : units;
        const bool amx = x.amx && f.quantized();
        const bool with_sign = amx && !layout.precise;  // what is added to AMX's products needs unsigned codes
        const uint8_t* weights = (with_sign ? type.unpack_signed : type.unpack)(panel.data(), layout.k, begin, end, unpacked);
        const size_t unit_bytes = f.quantized() ? w.panel_bytes / size_t(units) : 0;
        const uint8_t* ahead = panel.data() + size_t(end) * unit_bytes;
        const size_t ahead_bytes = size_t(end - begin) * unit_bytes;
        auto* amx_tile = amx ? x.amx->tile[layout.precise][f.subgroups - 1][f.has_min] : nullptr;
        for (int t = first_tile; t < end_tile; ++t) {
            const int rows = x.rows_of(t);
            const uint8_t* tile = x.base + size_t(t) * layout.bytes;
            float* tile_acc = acc + (t - first_tile) * 2 * kTileRows * kPanel;
            if (end == units) prefetch_rows(a, t * kTileRows, rows, panel.column);
            if (amx) {
                fetch_share(ahead, ahead_bytes, t - first_tile, end_tile - first_tile);
                amx_tile(weights, begin, end, tile, layout, layout.aux[aux_of(f)], tile_acc);
            } else {
                type.tile(kernel_rows(rows), weights, begin, end, tile, layout, t == first_tile ? ahead : nullptr, tile_acc);
            }
            if (end == units) store_rows(a, t * kTileRows, rows, panel.column, lanes, tile_acc, !f.quantized());
        }
    }
}

// Many rows compute: a task is a run of panels against a block of row tiles, small enough that a delayed thread costs
// little.
static void many_rows(const LinearArgs& a, const RowTiles& x, Worker& worker) {
    if (x.amx) x.amx->begin();
    const int panels = num_panels(a.num_weights, a.weights);
    const int row_blocks = int(ceil_div(x.count, kBlockTiles)), wanted = worker.count * 8 / row_blocks;
    const int run = worker.count == 1 || wanted < 1 ? panels : int(ceil_div(panels, wanted));
    const int runs = int(ceil_div(panels, run));
    for (int64_t task; (task = worker.take()) < int64_t(runs) * row_blocks;) {
        const int first_tile = int(task / runs) * kBlockTiles;
        const int end_tile = first_tile + kBlockTiles < x.count ? first_tile + kBlockTiles : x.count;
        const int begin = int(task % runs) * run, end = begin + run < panels ? begin + run : panels;
        for (int p = begin; p < end; ++p) run_panel(a, Panel(a.weights, p), x, first_tile, end_tile, worker);
    }
    if (x.amx) x.amx->end();
}

static void linear(const LinearArgs& a, Worker& worker) {
    if (a.rows <= 0) return;
    const int k = a.weights[0]->cols;
    unsigned mask = 0;
    for (int i = 0; i < a.num_weights; ++i) mask |= 1u << aux_of(a.weights[i]->format());
    const AmxKernels* amx = LEAFAGE_HAS_AMX && mask != 1u << kFloatRows ? amx_kernels() : nullptr;
    const bool few = a.rows <= kDirectRows;
    if (few) {
        worker.begin_runs(num_panels(a.num_weights, a.weights));
        fetch_start(first_panel(a.num_weights, a.weights, worker));
    }
    if (a.precise && (mask & kQuantizedMask)) mask |= 1u << kPrecise;
    const int tile_rows = few ? kernel_rows(a.rows) : kTileRows;
    RowTiles x{a.shared, TileLayout(tile_rows, k, mask), a.rows, int(ceil_div(a.rows, tile_rows)), few ? nullptr : amx};
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
    if (few)
        few_rows(a, x, worker);
    else
        many_rows(a, x, worker);
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
