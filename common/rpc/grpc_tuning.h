#pragma once

namespace recon {

// A connection that has been silent for this long is asked whether it lives, and has so long for its answer.
// It may be all that tells of a peer that died in the middle of a frame: whoever waits for the rest in one
// piece may miss the connection's end.
constexpr int kKeepaliveIntervalMs = 4'000;
constexpr int kKeepaliveTimeoutMs = 5'000;
// A message that is kept keeps so much of what was read with it, at most.
constexpr int kReadBlockBytesMax = 1 << 20;

// Has gRPC read a message in one piece: the socket wakes it when most of the message is there, and one block
// of memory takes it. By itself it wakes for whatever has come, and reads into blocks of 64 KiB. Of versions
// other than 1.51, and where GRPC_EXPERIMENTS is set, nothing is changed.
//
// Call it in main(), before gRPC is used and threads begin.
void TuneGrpc();

}  // namespace recon
