#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <optional>

#include "proto/control.pb.h"

namespace recon {

// What a server tells a worker of the job's state, as a dict of Python's; None for what it does not say.
inline nanobind::dict DictOf(const WorkerStateReply& reply) {
  nanobind::dict dict;
  dict["wanted"] = reply.wanted();
  dict["uploaded"] = reply.uploaded();
  dict["saved"] = reply.saved();
  dict["frontier"] = reply.frontier();
  dict["ready"] = reply.ready();
  dict["take"] = reply.take();
  dict["line"] = reply.line();
  dict["data_epoch"] = reply.data_epoch();
  dict["data_epoch_begins"] = reply.data_epoch_begins();
  dict["others_reach"] =
      reply.has_others_reach() ? std::optional<uint64_t>(reply.others_reach()) : std::nullopt;
  dict["ended_pass"] = reply.has_ended_pass() ? std::optional<uint32_t>(reply.ended_pass()) : std::nullopt;
  dict["ends_at"] = reply.ends_at();
  return dict;
}

}  // namespace recon
