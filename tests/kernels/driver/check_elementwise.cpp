// The ops between the matrix products: near the oracle, and the same bits for a row alone, in a batch and on any
// number of threads.
#include "driver.h"
#include "program.h"
#include "weights.h"

using namespace leafage;

namespace {

// Rows first .. first + count - 1 of the case's op into out [count][width of the result].
void compute(const Case& one, Run& run, int first, int count, int threads, float* out) {
    const std::string op = one.op();
    const int ldx = one.columns("x"), width = one.columns("expected");
    std::vector<float> x(one.get<float>("x") + size_t(first) * size_t(ldx),
                         one.get<float>("x") + size_t(first + count) * size_t(ldx));
    const Kernels& k = run.table;
    auto in_place = [&](const std::function<void(Worker&)>& body) {
        run.on_team(threads, body);
        std::copy(x.begin(), x.end(), out);
    };
    if (op == "rms_norm") {
        NormArgs args{x.data(), ldx, out, width, count, width, one.get<float>("weight"), one.number("eps"), 1};
        run.on_team(threads, [&](Worker& worker) { k.rms_norm(args, worker); });
    } else if (op == "head_norm") {
        float* from = x.data() + one.integer("column");
        NormArgs args{from, ldx, from, ldx, count, one.rows("weight"), one.get<float>("weight"), one.number("eps"),
                      one.integer("num_heads")};
        in_place([&](Worker& worker) { k.rms_norm(args, worker); });
    } else if (op == "rope") {
        RopeArgs args{x.data() + one.integer("column"), ldx, count, one.integer("num_heads"),
                      one.integer("head_dim"), one.columns("table"), one.integer("interleaved") != 0,
                      one.get<int32_t>("positions") + first, one.get<float>("table")};
        in_place([&](Worker& worker) { k.rope(args, worker); });
    } else if (op == "act_mul") {
        ActMulArgs args{x.data(), ldx, out, width, count, width, Activation(one.integer("activation"))};
        run.on_team(threads, [&](Worker& worker) { k.act_mul(args, worker); });
    } else if (op == "add") {
        AddArgs args{x.data(), one.get<float>("y") + size_t(first) * size_t(ldx), count, ldx};
        in_place([&](Worker& worker) { k.add(args, worker); });
    } else {
        SoftcapArgs args{x.data(), count, ldx, one.number("cap")};
        in_place([&](Worker& worker) { k.softcap(args, worker); });
    }
}

}  // namespace

void check_elementwise(const Case& one, Run& run) {
    const int rows = one.rows("x");
    const size_t width = size_t(one.columns("expected"));
    std::vector<float> whole(size_t(rows) * width), out(size_t(rows) * width);
    for (int threads : kThreads) {
        compute(one, run, 0, rows, threads, out.data());
        if (threads == 1) {
            whole = out;
            run.note(whole.data(), whole.size());
            if (one.has("limit"))
                run.near("whole", whole.data(), one.doubles("expected"), one.doubles("limit"));
            else
                run.same("whole", whole.data(), one.get<float>("expected"), whole.size());
        } else {
            run.same(threads_text(threads), out.data(), whole.data(), whole.size());
        }
        for (int r = 0; r < rows; ++r) {
            compute(one, run, r, 1, threads, out.data());
            run.same("row " + std::to_string(r) + " alone", out.data(), whole.data() + size_t(r) * width, width);
        }
    }
}

// Part of a program, not of the table: embed, then the rows that need logits, in slices.
void check_select_logit_rows(const Case& one, Run& run) {
    const int vocab = one.rows("table"), width = one.columns("table"), rows = one.rows("ids");
    const RawWeight raw{Dtype::F32, vocab, width, reinterpret_cast<const uint8_t*>(one.get<float>("table"))};
    const PackedWeight table = pack({raw}, 1)[0];
    constexpr int kSlice = 2;
    const int wanted = one.rows("logit_rows");
    StepView step{};
    step.num_rows = rows;
    step.token_ids = one.get<int32_t>("ids");
    step.num_logit_rows = wanted;
    step.logit_rows = one.get<int32_t>("logit_rows");
    for (int threads : kThreads) {
        Program program(threads, rows, kSlice, {{0, width}, {1, width}}, {width, -width}, 1, nullptr);
        Op embed, select;
        embed.kind = OpKind::kEmbed;
        embed.out = 0;
        embed.weights = {&table};
        embed.f0 = 1.0f;
        select.kind = OpKind::kSelectLogitRows;
        select.in = 0;
        select.out = 1;
        program.add(embed);
        program.add(select);
        program.finish(width, 1, 16);
        std::vector<float> out;
        for (int first = 0; first < wanted; first += kSlice) {
            if (first == 0) program.run(step, Sampling{});
            else program.run_head(step, first, Sampling{});
            int count = wanted - first < kSlice ? wanted - first : kSlice;
            out.insert(out.end(), program.logits(), program.logits() + count * width);
        }
        run.same(threads_text(threads), out.data(), one.get<float>("expected"), out.size());
        if (threads == 1) run.note(out.data(), out.size());
    }
}
