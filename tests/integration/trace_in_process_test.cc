#include <set>
#include <string>
#include <thread>

#include "catch2/catch.hpp"
#include "common/rpc/trace_client.h"
#include "common/trace/span_names.h"
#include "tests/integration/in_process_job.h"
#include "tests/integration/job_checks.h"
#include "tests/support/process.h"
#include "tools/trace/step_times.h"
#include "tools/trace/timeline.h"

namespace recon {

TEST_CASE("workers in the head's process are in its part of the trace, and nothing lacks", "[trace]") {
  InProcessJob job(/*bound=*/-1, /*workers_min=*/2);
  job.flags.job.set_data_epochs(100'000);
  job.StartServer();
  std::vector<absl::Status> statuses;
  std::thread workers([&] { statuses = job.RunWorkers({job.MakeWorker("a"), job.MakeWorker("b")}); });
  CHECK(Eventually([&] { return job.Control().Status()->pushes() > 0; }));
  TimelineBuilder builder;
  CHECK(TraceClient(*ConnectTo(job.flags.listen, {}))
            .Record(absl::Milliseconds(300),
                    [&](TraceUpdate update) { CHECK(builder.Add(std::move(update)).ok()); })
            .ok());
  job.stop = true;
  workers.join();
  CheckAllOk(statuses);
  REQUIRE(builder.ended());
  const Timeline timeline = builder.Build();
  REQUIRE(timeline.processes.size() == 1);
  CHECK(timeline.gaps.empty());
  std::set<std::string> names;
  for (const Timeline::Span& span : timeline.spans) names.insert(*span.name);
  CHECK(names.count(trace::kComputing) == 1);
  CHECK(names.count(trace::kApplying) == 1);
}

}  // namespace recon
