#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Early return on failure: absl::Status is the only failure path of the project.

#define RECON_RETURN_IF_ERROR(expr)                \
  do {                                             \
    absl::Status recon_status_ = (expr);           \
    if (!recon_status_.ok()) return recon_status_; \
  } while (false)

#define RECON_CONCAT_INNER(a, b) a##b
#define RECON_CONCAT(a, b) RECON_CONCAT_INNER(a, b)

#define RECON_ASSIGN_OR_RETURN(lhs, expr) \
  RECON_ASSIGN_OR_RETURN_IMPL(RECON_CONCAT(recon_or_, __LINE__), lhs, expr)

#define RECON_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                \
  if (!tmp.ok()) return tmp.status();               \
  lhs = std::move(tmp).value()
