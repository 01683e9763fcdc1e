#include <algorithm>
#include <cmath>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/json/message_json.h"
#include "nlohmann/json.hpp"
#include "tools/reconctl/history_source.h"
#include "tools/reconctl/render.h"
#include "tools/reconctl/verbs.h"

namespace recon {
namespace {

using Json = nlohmann::ordered_json;

// What is compared of one job; NaN for what is not known.
struct Outcome {
  std::string source, model;
  double seconds = NAN;  // From its first point to its last.
  double data_epochs = NAN;
  double loss = NAN, accuracy = NAN, best_accuracy = NAN;  // Of evaluations.
  double training_loss = NAN;
  double seconds_to_loss = NAN;
  // Means over the points in which the job trained.
  double samples_per_second = NAN, staleness = NAN, push_bytes_per_second = NAN, push_latency_ms = NAN;
  double workers = NAN;
  int64_t evicted = 0, restarted = 0, rollbacks = 0;
};

// The mean of a series over the job's samples in which something was trained.
double MeanOf(const HistoryTrack& track, const std::string& name) {
  const HistorySeries* series = FindSeries(track, name);
  const HistorySeries* rate = FindSeries(track, "samples_per_second");
  if (series == nullptr || rate == nullptr) return NAN;
  double sum = 0, weight = 0;
  for (int i = 0; i < series->mean_size(); ++i) {
    if (!std::isfinite(series->mean(i)) || !(rate->mean(i) > 0)) continue;
    sum += static_cast<double>(series->mean(i)) * track.samples(i);
    weight += track.samples(i);
  }
  return weight > 0 ? sum / weight : NAN;
}

double SecondsBetween(int64_t from_ms, int64_t to_ms) { return static_cast<double>(to_ms - from_ms) / 1000; }

// Until the series is first at `loss` or below.
double SecondsToLoss(const HistoryTrack& track, double loss, int64_t begin_ms) {
  const HistorySeries* series = FindSeries(track, "loss");
  for (int i = 0; series != nullptr && i < series->mean_size(); ++i) {
    if (series->mean(i) <= loss) return SecondsBetween(begin_ms, track.end_ms(i));
  }
  return NAN;
}

Outcome OutcomeOf(const std::string& source, const JobHistory& history) {
  Outcome outcome;
  outcome.source = source;
  outcome.model = history.model();
  const HistoryTrack& job = history.job();
  if (job.end_ms_size() > 0) outcome.seconds = SecondsBetween(job.begin_ms(0), *job.end_ms().rbegin());
  outcome.data_epochs = LastOf(job, "data_epochs");
  outcome.training_loss = LastOf(job, "loss");
  outcome.loss = LastOf(history.evaluations(), "loss");
  outcome.accuracy = LastOf(history.evaluations(), "accuracy");
  if (const HistorySeries* accuracy = FindSeries(history.evaluations(), "accuracy"); accuracy != nullptr) {
    for (const float best : accuracy->max()) {
      if (!(best <= outcome.best_accuracy)) outcome.best_accuracy = best;
    }
  }
  outcome.samples_per_second = MeanOf(job, "samples_per_second");
  outcome.staleness = MeanOf(job, "staleness");
  outcome.push_bytes_per_second = MeanOf(job, "push_bytes_per_second");
  outcome.push_latency_ms = MeanOf(job, "push_latency_ms");
  outcome.workers = MeanOf(job, "workers");
  const auto events = [&](const char* kind) {
    return std::count_if(history.events().begin(), history.events().end(),
                         [&](const HistoryEvent& event) { return event.kind() == kind; });
  };
  outcome.evicted = events("evicted");
  outcome.restarted = events("started") - 1;
  outcome.rollbacks = events("rollback");
  return outcome;
}

std::string Shown(double value, const char* unit = "") {
  return std::isfinite(value) ? absl::StrFormat("%.4g%s", value, unit) : "-";
}

Json Known(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json ToJson(const Outcome& outcome) {
  return {{"source", outcome.source},
          {"model", outcome.model},
          {"seconds", Known(outcome.seconds)},
          {"data_epochs", Known(outcome.data_epochs)},
          {"loss", Known(outcome.loss)},
          {"accuracy", Known(outcome.accuracy)},
          {"best_accuracy", Known(outcome.best_accuracy)},
          {"training_loss", Known(outcome.training_loss)},
          {"seconds_to_loss", Known(outcome.seconds_to_loss)},
          {"samples_per_second", Known(outcome.samples_per_second)},
          {"staleness", Known(outcome.staleness)},
          {"push_bytes_per_second", Known(outcome.push_bytes_per_second)},
          {"push_latency_ms", Known(outcome.push_latency_ms)},
          {"workers", Known(outcome.workers)},
          {"evicted", outcome.evicted},
          {"server_restarts", outcome.restarted},
          {"rollbacks", outcome.rollbacks}};
}

void Print(const Outcome& a, const Outcome& b, const std::string& reached) {
  const auto row = [](const std::string& what, const std::string& left, const std::string& right) {
    return std::vector<std::string>{what, left, right};
  };
  const auto both = [&](const std::string& what, double Outcome::*value, const char* unit = "") {
    return row(what, Shown(a.*value, unit), Shown(b.*value, unit));
  };
  std::cout << Table(
      {row("", a.source, b.source), row("model", a.model, b.model),
       both("data epochs", &Outcome::data_epochs), both("time", &Outcome::seconds, " s"),
       both("loss of the last evaluation", &Outcome::loss), both("accuracy", &Outcome::accuracy),
       both("best accuracy", &Outcome::best_accuracy), both("training loss", &Outcome::training_loss),
       both(reached, &Outcome::seconds_to_loss, " s"), both("samples a second", &Outcome::samples_per_second),
       both("workers", &Outcome::workers), both("staleness", &Outcome::staleness),
       both("pushed a second", &Outcome::push_bytes_per_second, " B"),
       both("push latency", &Outcome::push_latency_ms, " ms"),
       row("workers evicted", absl::StrCat(a.evicted), absl::StrCat(b.evicted)),
       row("server restarts", absl::StrCat(a.restarted), absl::StrCat(b.restarted)),
       row("rollbacks", absl::StrCat(a.rollbacks), absl::StrCat(b.rollbacks))});
}

}  // namespace

absl::Status CompareJobs(const CompareTarget& target) {
  std::vector<JobHistory> histories;
  std::vector<Outcome> outcomes;
  for (const std::string& source : target.sources) {
    RECON_ASSIGN_OR_RETURN(histories.emplace_back(), LoadHistory(source, target.server, ""));
    outcomes.push_back(OutcomeOf(source, histories.back()));
  }
  // Evaluations see parameters, training sees batches: the two are not mixed.
  const bool evaluated = std::isfinite(outcomes[0].loss) && std::isfinite(outcomes[1].loss);
  const auto last = [&](const Outcome& outcome) { return evaluated ? outcome.loss : outcome.training_loss; };
  // One that both have come to.
  const double loss = target.loss > 0 ? target.loss : std::max(last(outcomes[0]), last(outcomes[1]));
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const HistoryTrack& job = histories[i].job();
    if (job.begin_ms_size() == 0) continue;
    outcomes[i].seconds_to_loss =
        SecondsToLoss(evaluated ? histories[i].evaluations() : job, loss, job.begin_ms(0));
  }
  if (target.server.json) {
    std::cout << JsonText({{"loss", Known(loss)},
                           {"of_evaluations", evaluated},
                           {"jobs", {ToJson(outcomes[0]), ToJson(outcomes[1])}}})
              << "\n";
    return absl::OkStatus();
  }
  Print(outcomes[0], outcomes[1],
        absl::StrCat("time to ", evaluated ? "a loss of " : "a training loss of ", Shown(loss)));
  return absl::OkStatus();
}

}  // namespace recon
