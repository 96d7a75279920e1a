// The attention of a step by one way A of computing scores and values; attention_plan.h says who does what.
#pragma once
#include "attention_plan.h"
#include "attention_task.h"

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {

template <class A>
static void attention_by(const AttentionArgs& a, Worker& worker) {
    Plan plan(a, worker.count, A::kBlockRows);
    Attend<A> attend(a, plan, *reinterpret_cast<AttentionScratch*>(worker.scratch));
    if (plan.prefixes.num_shared > 0) {
        int64_t ticket = worker.take(), first = 0;
        for (int i = 0; i < plan.prefixes.num_shared; ++i) {
            const SharedPrefix& prefix = plan.prefixes.shared[i];
            int64_t count = plan.num_tasks(prefix);
            for (; ticket < first + count; ticket = worker.take()) attend.run(plan.task(prefix, int(ticket - first)));
            first += count;
        }
        worker.barrier();
    }
    for (int round = 0; round < plan.num_rounds; ++round) {
        int64_t ticket = worker.take(), first = 0, base = 0;
        for (int i = 0; i < a.num_items; ++i) {
            ItemPlan item = plan.item(i, base);
            if (item.split) base += int64_t(a.items[i].num_rows) * a.num_heads;
            int64_t count = plan.num_tasks(item, round);
            while (ticket < first + count) {
                attend.run(plan.task(item, round, int(ticket - first)));
                ticket = worker.take();
            }
            first += count;
        }
        if (plan.split_rows == 0) return;
        worker.barrier();
        // Row-heads of split items, round robin over the team.
        base = 0;
        for (int i = 0; i < a.num_items; ++i) {
            ItemPlan item = plan.item(i, base);
            if (!item.split) continue;
            int rows = a.items[i].num_rows * a.num_heads;
            for (int r = 0; r < rows; ++r)
                if ((base + r) % worker.count == worker.index) attend.merge(item, round, r);
            base += rows;
        }
        if (round + 1 < plan.num_rounds) worker.barrier();
    }
}

}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
