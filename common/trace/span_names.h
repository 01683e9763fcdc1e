#pragma once

namespace recon::trace {

// What spans are called; tools/trace/README.md says what each is. "Passive" ones are no thread's doing.

// Of a worker. Its training thread:
inline constexpr char kComputing[] = "computing";
inline constexpr char kEvaluating[] = "evaluating";
inline constexpr char kWaitingForPushes[] = "waiting for pushes";
inline constexpr char kWaitingForWork[] = "waiting for work";
inline constexpr char kPulling[] = "pulling parameters";
inline constexpr char kCompleting[] = "completing splits";
inline constexpr char kWaitingForRollback[] = "waiting for a rollback";
// The threads that push:
inline constexpr char kEncoding[] = "encoding";
inline constexpr char kSending[] = "sending";
inline constexpr char kUnderWay[] = "under way";  // Passive: a frame, from its sending to its reply.

// Of a server.
inline constexpr char kReceiving[] = "receiving";
inline constexpr char kFrame[] = "frame";  // Passive: from its arrival to its reply.
inline constexpr char kLogging[] = "log";  // Passive: a frame or a closing, until the push log has it.
inline constexpr char kWaitingForOthers[] = "waiting for others";  // Passive: its reply.
inline constexpr char kWritingLog[] = "writing the log";
inline constexpr char kApplying[] = "apply";
inline constexpr char kClosing[] = "closing";
inline constexpr char kReplying[] = "reply";
inline constexpr char kSnapshot[] = "snapshot";
// Of a server's collectives:
inline constexpr char kWaitingForMembers[] = "waiting for members";  // Passive: a chunk, for the last frame.
inline constexpr char kCombining[] = "combine";
// A member's are passive: its calls, by their kinds (CallKindName()).

}  // namespace recon::trace
