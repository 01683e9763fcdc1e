#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

// Every bound of the system, with its reason. Reaching one is ResourceExhausted, never a longer queue.
namespace recon::limits {

// A frame holds whole shards: seven in 16 bits (128 KiB each), three of FP32, its header and its table. That
// stays below the MiB that gRPC writes at a time: what is longer takes two writes, and the second waits for
// the end of the first.
constexpr size_t kFrameTargetBytes = 7 * (size_t{128} << 10);
// With several servers a part of this each, but a shard of FP32: see FrameBytesFor().
constexpr size_t kFrameTargetBytesOfAll = size_t{1} << 20;
constexpr size_t kFrameTargetBytesMin = size_t{256} << 10;
constexpr size_t kFrameBytesMax = size_t{8} << 20;
// A frame of the smallest shards stays far below this; it bounds what a decoder allocates.
constexpr uint32_t kFramePartsMax = 4096;

// A control message: a model of 100,000 tensors with 100-byte names fits.
constexpr int kControlMessageBytesMax = 32 << 20;
constexpr int kTensorsMax = 100'000;
constexpr int kTensorRankMax = 16;
// Tensors in files that are imported: those of a model, and as many that are not trained.
constexpr size_t kFileTensorsMax = size_t{2} * kTensorsMax;
// 2^36 parameters are 256 GiB of FP32: more than a head node holds.
constexpr uint64_t kParametersMax = uint64_t{1} << 36;
constexpr size_t kNameBytesMax = 256;
// What a worker says of its codec with each heartbeat.
constexpr size_t kProgressTextBytesMax = 2048;

// What a worker may have sent that is neither taken nor answered; what is over waits with the worker. Enough
// to keep connection, check and lanes busy at once: 16 MiB gave no more on loopback, and a server holds as
// much of every worker. A link of 10 Gbit/s is kept full up to a round trip of 7 ms.
constexpr size_t kRequestBytesInFlight = size_t{8} << 20;
// Where the server is on the worker's machine, so many divided by the server's workers, wherever those are,
// but two at least and one at most for each connection: fewer, and cores wait for each other; more only fill
// the caches.
constexpr size_t kRequestFramesOnOneMachine = 6;
// With several servers, all of them together, their part of that: what is under way for longer than the links
// need keeps a synchronous step open. But this, and to each server a frame for each connection, two at least.
constexpr size_t kRequestBytesInFlightMin = size_t{4} << 20;
constexpr size_t kRequestFramesInFlightMin = 2;
// Workers that push the same synchronous step side by side send no more than that window before the others
// have sent theirs: who is ahead leaves the servers' links to the others. One that waits longer than this is
// not side by side with them: what it sends is taken.
constexpr absl::Duration kInStepPatience = absl::Milliseconds(500);
// Connections for frames, beside the one for control; those that are not needed are not made. What is sent
// behind another frame of its connection waits for the pace of TCP (common/DESIGN.md). With TLS, more of them
// help more.
constexpr int kDataConnections = 6;
constexpr int kDataConnectionsMax = 16;
// The server reads no further from a worker that sends more, nor from one that does not read its replies.
constexpr size_t kStreamBytesInFlightMax = 2 * kRequestBytesInFlight;
// Of its replies a server has at most so many in memory: written and not sent, or not taken from shared
// memory.
constexpr size_t kRepliesBytesMax = 4 * kRequestBytesInFlight;
// When a worker that was sent away asks again.
constexpr absl::Duration kOverloadRetry = absl::Milliseconds(200);
// Replies that may wait for a staleness bound: every worker's whole window, several times over.
constexpr size_t kWaitingRepliesMax = 131'072;
// A waiting reply is answered DeadlineExceeded after this long; the worker asks again.
constexpr absl::Duration kReplyWaitMax = absl::Seconds(10);
// With local steps: others' rounds may take that much longer, and asking again sends all of it again.
constexpr absl::Duration kRoundReplyWaitMax = absl::Minutes(10);

constexpr size_t kMembersMax = 4096;
// Of those that are gone, which are only shown: whoever asks for a status gets them all.
constexpr size_t kGoneMembersMax = 256;
// Processes whose names others have taken over, and who are told so.
constexpr size_t kSupersededMax = 16'384;
// Who waits for the end of a drain.
constexpr size_t kDrainsWaitingMax = 64;
// Lines of the audit log that wait to be written.
constexpr uint64_t kAuditLinesMax = 1024;
// Calls that were denied and whose callers look for a token: beyond, each is in the audit log at once.
constexpr size_t kDeniedWhoLookMax = 256;
// Servers of a job, the head among them.
constexpr uint32_t kServersMax = 256;
// Batches that a worker trains on between two pushes.
constexpr uint32_t kLocalStepsMax = 1'000'000;
// Versions of the parameters that a staleness correction compares with: that many times their memory.
constexpr uint32_t kVersionsKeptMax = 256;
// What the head has to say to a server that does not read: then it is given up, and is told all anew.
constexpr size_t kServerCommandsMax = 65'536;
// Splits whose pushes are under way, as many as a pipeline has places; then the worker waits before it asks
// for more.
constexpr size_t kOpenSplitsMax = 16;
// Those, and the leases of replies that were lost, until they expire.
// Settings that a worker's script asks for, and measures of an evaluation.
constexpr size_t kProposedFlagsMax = 256;
constexpr int kMetricsMax = 64;
constexpr size_t kLeasesPerWorkerMax = 4 * kOpenSplitsMax;
// Splits of one lease, however fast its worker is.
constexpr uint32_t kLeaseSplitsMax = 1024;
// The job's whole list of splits is kept in memory, one bit and a few words each.
constexpr uint64_t kSplitsMax = 10'000'000;
// Passes over the training data. A hundred splits of each are within kSplitsMax: with more passes, any data
// that a worker has is refused.
constexpr uint32_t kDataEpochsMax = 100'000;

// A connection of gRPC's that has been silent for so long is asked whether it lives, and has so long for its
// answer. It may be all that tells of a peer that died in the middle of a frame: TuneGrpc() has gRPC wait for
// the rest in one piece, and that may miss the connection's end.
constexpr absl::Duration kKeepaliveInterval = absl::Seconds(4);
constexpr absl::Duration kKeepaliveTimeout = absl::Seconds(5);
// gRPC reads into blocks of so many bytes, or of the HTTP/2 frame that it waits for if that is more. A
// message that is kept keeps the blocks it lies in.
constexpr int kReadBlockBytesMax = 1 << 20;
// A client's smallest: what a reply begins with goes into such blocks one after another. gRPC's own are of
// 256 bytes, so that some replies began in what was left of one and took another read.
constexpr int kReadBlockBytesMin = 8192;
// A worker whose heartbeats get no answer for so long cuts its connections for frames, whatever they are:
// later than the keepalive of gRPC notices.
constexpr absl::Duration kServerSilenceMax = absl::Seconds(15);

// Workers that one which joins takes parameters from: their links together are more than its own.
constexpr size_t kPeersMax = 8;

// Pushes a worker may have in flight; also bounds the memory of its slots.
constexpr int kPipelineDepthMax = 16;
// A frame's deadline leaves time for links of this rate; a slower one would send a push again and again.
constexpr double kLinkBytesPerSecondMin = 1e6;
// A push this far beyond what the server knows of its worker is an error; below the 64 steps a shard's
// ledger can tell apart.
constexpr uint64_t kStepsAheadMax = uint64_t{2} * kPipelineDepthMax;
// Means of the last steps that a server keeps for workers that come to them later (--optimizer mean): as many
// as fit these bytes, and so many at least and at most. A worker that is further behind takes the state of
// another.
constexpr uint64_t kMeansBytes = uint64_t{64} << 20;
constexpr uint64_t kMeansKeptMin = 8;
constexpr uint64_t kMeansKeptMax = 1024;
// No job gets there; keeps sums of steps from wrapping.
constexpr uint64_t kStepMax = uint64_t{1} << 48;
// No job is begun anew so often; the numbers of leases have so many bits for it.
constexpr uint64_t kClusterEpochMax = (uint64_t{1} << 24) - 1;
// Samples of a data set: numbers of samples are 32-bit in the workers' orders.
constexpr uint64_t kSamplesMax = uint64_t{1} << 32;

// A snapshot's table of contents: 35 bytes a page of 256 KiB; 2^36 parameters need 37 MB.
constexpr uint64_t kManifestBytesMax = uint64_t{256} << 20;
// Tensors that come along with a job and are not trained: a server keeps them in memory.
constexpr uint64_t kCarriedBytesMax = uint64_t{256} << 20;
// A page that does not compress, and its header.
constexpr uint64_t kEncodedPageBytesMax = (uint64_t{256} << 10) + 64;
// Pages that lie side by side in a pack are read together, up to so many bytes. From a disk two,
// whether they compress or not: each reader's memory stays small (common/DESIGN.md). From other machines
// more, so that a request's latency is small beside it.
constexpr uint64_t kDiskReadBytes = 2 * kEncodedPageBytesMax;
constexpr uint64_t kStoreReadBytes = uint64_t{4} << 20;
constexpr uint64_t kPackBytesTarget = uint64_t{256} << 20;

// Stores on other machines. A part of an upload: a request's overhead is small against it, and every object
// that is being written keeps three. S3 wants 5 MiB at least and takes 10,000 of them.
constexpr uint64_t kStorePartBytes = uint64_t{8} << 20;
constexpr int kStorePartsMax = 10'000;
// How long requests are tried again while the store does not answer or says that it cannot now.
constexpr absl::Duration kStorePatience = absl::Seconds(30);
// An answer that goes to memory: a page of a listing, an error.
constexpr uint64_t kHttpBodyBytesMax = uint64_t{64} << 20;

// Push log: a record is a frame, or a closing of kMembersMax contributors.
constexpr uint64_t kLogRecordBytesMax = kFrameBytesMax;
// Small enough that a trimmed log wastes little, large enough that beginning one costs nothing.
constexpr uint64_t kLogSegmentBytes = uint64_t{64} << 20;
// A segment takes room on the disk in pieces of so many bytes, ahead of what is written: a full disk is
// noticed while what is under way still fits. As large as a batch.
constexpr uint64_t kLogExtentBytes = uint64_t{8} << 20;
// With a small budget, segments and their pieces are small, too; not smaller than these.
constexpr uint64_t kLogBudgetBytesMin = uint64_t{16} << 20;
constexpr uint64_t kLogSegmentBytesMin = uint64_t{1} << 20;
// By default the log takes half of what is free, and never more than this: replay reads as much in half a
// minute.
constexpr uint64_t kLogBudgetBytesMax = uint64_t{16} << 30;
// What replay is expected to read of the log; slow disks are slower, and then replay takes longer than
// planned.
constexpr double kLogReadBytesPerSecond = 5e8;
// Records that wait for the log's thread; as they hold their frames, what bounds those
// bounds them, too.
constexpr uint64_t kLogBatchBytes = uint64_t{8} << 20;

// Traces (proto/trace.proto). One lasts a minute at most: what is looked for shows in seconds.
constexpr absl::Duration kTraceMax = absl::Minutes(1);
// What a thread has recorded and nobody has fetched yet: some tenths of a second of the busiest thread; and
// so many threads of a process.
constexpr size_t kTraceThreadSpansMax = 8192;
constexpr size_t kTraceThreadsMax = 128;
// Spans that are delivered in one piece, 160 KiB of them, and words that such a piece has.
constexpr int kTracePieceSpansMax = 8192;
constexpr int kTraceNamesMax = 64;
// What the head hands on of one process, and of all: a client keeps it in memory, 64 bytes a span. What it
// has not sent yet it keeps itself.
constexpr uint64_t kTraceMemberSpansMax = 1'000'000;
constexpr uint64_t kTraceSpansMax = 4'000'000;
constexpr size_t kTraceQueueBytesMax = size_t{16} << 20;
// For what members have recorded last, once the time is over.
constexpr absl::Duration kTracePatience = absl::Seconds(3);

// Collectives (common/collective). A chunk with its header stays below the MiB that gRPC writes at a time.
constexpr size_t kCollectiveChunkBytesMax = (size_t{1} << 20) - (size_t{8} << 10);
// Smaller ones cost more than they bring in concurrency.
constexpr size_t kCollectiveChunkBytesMin = size_t{64} << 10;
// What a member may have sent of a set's calls that is not decided; with many members less, so that a server
// holds at most as much for them together as kCollectiveHeldBytes, but two chunks each.
constexpr size_t kCollectiveWindowBytes = size_t{8} << 20;
constexpr size_t kCollectiveHeldBytes = size_t{256} << 20;
constexpr size_t kCollectiveHeldBytesMax = size_t{4} << 30;
// Places are 15 bits in a channel's number; a chunk's frame comes from each.
constexpr uint32_t kCollectiveMembersMax = 4096;
constexpr size_t kCollectiveSetsMax = 4096;
// Of a member: calls that have begun and are not decided, with however many chunks.
constexpr size_t kCollectiveCallsMax = 65'536;
// Of an epoch: a server remembers them, so that who comes late gets their error. After so many it ends the
// epoch.
constexpr size_t kCollectiveFailedCallsMax = 4096;
// A call's description, or why it failed.
constexpr size_t kCollectiveTextBytesMax = 4096;
constexpr absl::Duration kCollectiveHeartbeat = absl::Milliseconds(300);

// Data files: the largest allowed IDX or CIFAR file once decompressed.
constexpr uint64_t kDatasetBytesMax = uint64_t{16} << 30;

}  // namespace recon::limits
