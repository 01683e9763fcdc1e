#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace recon {

// How the processes of a job trust each other: the flags --tls-cert, --tls-key, --tls-ca, --tls-crl,
// --insecure and --token-file of every program.
struct TlsFlags {
  std::string cert;  // PEM files. All three or none.
  std::string key;
  std::string ca;
  // Plain text on an address other than loopback.
  bool insecure = false;
  // With one token, which is shown to the head; empty: none.
  std::string token_file = "";  // NOLINT(readability-redundant-string-init): lists of four stay complete.
  // Of certificates that the CA has revoked, read again when it changes; empty: none.
  std::string crl = "";  // NOLINT(readability-redundant-string-init)
};

// What is in the three files: texts in PEM.
struct TlsTexts {
  std::string cert, key, ca;
};

// Which end of a connection a certificate is for.
enum class TlsEnd { kServer, kClient };

// Whether all that a process shows and trusts fits together at `now`, before anybody connects: each file can
// be parsed, the key belongs to the certificate, the certificate is valid now, is one of the CA and may be
// used by that end. InvalidArgument, which names the flag, the file and the cause. The flags name the files
// whose `texts` these are. Pure.
absl::Status CheckCertificates(const TlsFlags& flags, const TlsTexts& texts, TlsEnd end, absl::Time now);

}  // namespace recon
