#!/usr/bin/python3
"""Runs OpenStack Swift with its S3 API on loopback, all of it below one directory: a real server for the tests of
s3:// stores. Prints one line, "ready http://127.0.0.1:PORT", and serves until it gets SIGTERM or its parent ends.

    swift_server.py DIRECTORY

Bucket "recon" is there; the access key is "test:tester", the secret key "testing", the region "us-east-1". Needs
Debian's python3-swift and a file system with extended attributes below DIRECTORY.

Swift stores an object only if it is absent (If-None-Match: *) when asked to by its own API; its S3 API, made before
Amazon's had that, refuses to pass the header on. Here it passes it on: that is the one change to what Debian ships.
"""
import ctypes
import hashlib
import hmac
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

SYSTEM_PYTHON = "/usr/bin/python3"  # The one that Debian's packages are for.
SERVERS = ("account", "container", "object")
ACCESS_KEY, SECRET_KEY, REGION = "test:tester", "testing", "us-east-1"

SWIFT_CONF = """
[swift-hash]
swift_hash_path_suffix = recon
[storage-policy:0]
name = only
default = yes
"""

STORAGE_CONF = """
[DEFAULT]
swift_dir = {directory}
devices = {directory}/devices
mount_check = false
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
log_udp_host = 127.0.0.1
log_udp_port = {log_port}
fallocate_reserve = 0
[pipeline:main]
pipeline = healthcheck {kind}-server
[filter:healthcheck]
use = egg:swift#healthcheck
[app:{kind}-server]
use = egg:swift#{kind}
replication_server = false
[{kind}-replicator]
[{kind}-auditor]
"""

PROXY_CONF = """
[DEFAULT]
swift_dir = {directory}
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
log_udp_host = 127.0.0.1
log_udp_port = {log_port}
[pipeline:main]
pipeline = catch_errors gatekeeper healthcheck cache s3api tempauth copy slo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
# A storage server that was slow or silent once is asked again: by default it would be left alone for a minute, and on a
# busy machine half a second is not much to be silent for.
error_suppression_limit = 1000000000
conn_timeout = 10
node_timeout = 60
allow_account_management = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
[filter:healthcheck]
use = egg:swift#healthcheck
# Asked for by tempauth, which keeps tokens there; S3 requests have none, so that no memcached needs to run.
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:1
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
check_bucket_owner = false
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
[filter:copy]
use = egg:swift#copy
[filter:slo]
use = egg:swift#slo
"""

SERVE = """
import os
import sys
from swift.common import storage_policy, utils
from swift.common.middleware.s3api.s3request import S3Request
from swift.common.wsgi import run_wsgi

validate = S3Request._validate_headers


def validate_but_condition(self):
    condition = self.environ.pop("HTTP_IF_NONE_MATCH", None)
    validate(self)
    if condition is not None:
        self.environ["HTTP_IF_NONE_MATCH"] = condition


S3Request._validate_headers = validate_but_condition
# Some versions of Debian's package look for swift.conf before they have read which directory it is in.
utils.set_swift_dir(os.environ["SWIFT_DIR"])
storage_policy.reload_storage_policies()
sys.exit(run_wsgi(sys.argv[1], sys.argv[2]))
"""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def make_ring(directory, kind, port):
    from swift.common.ring import RingBuilder  # Debian's package is for the system's Python.
    builder = RingBuilder(part_power=4, replicas=1, min_part_hours=0)
    builder.add_dev({"region": 1, "zone": 1, "ip": "127.0.0.1", "port": port, "device": "one", "weight": 1,
                     "replication_ip": "127.0.0.1", "replication_port": port})
    builder.rebalance()
    builder.get_ring().save(os.path.join(directory, kind + ".ring.gz"))


def keep_log(directory):
    """Swift logs to syslog only: this is one. Returns its port."""
    incoming = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    incoming.bind(("127.0.0.1", 0))

    def run():
        with open(os.path.join(directory, "swift.log"), "ab", buffering=0) as out:
            while True:
                out.write(incoming.recv(65536).rstrip(b"\0") + b"\n")

    threading.Thread(target=run, daemon=True).start()
    return incoming.getsockname()[1]


def start(directory, kind, conf):
    path = os.path.join(directory, kind + ".conf")
    with open(path, "w") as out:
        out.write(conf)
    log = open(os.path.join(directory, kind + ".log"), "w")
    death_signal = lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # Ends with this process, however that ends.
    environment = dict(os.environ, SWIFT_DIR=directory)
    return subprocess.Popen([SYSTEM_PYTHON, "-c", SERVE, path, kind + "-server"], stdout=log, stderr=log,
                            preexec_fn=death_signal, env=environment)


def request(url, method="GET", headers=None):
    return urllib.request.urlopen(urllib.request.Request(url, method=method, headers=headers or {}), timeout=10)


def wait_until_healthy(kind, port, child, deadline):
    while True:
        if child.poll() is not None:
            sys.exit(f"swift_server: the {kind} server ended with {child.returncode}: see its log")
        try:
            if request(f"http://127.0.0.1:{port}/healthcheck").read() == b"OK":
                return
        except OSError:  # Refused, reset, timed out: it may still be starting.
            if time.monotonic() > deadline:
                sys.exit(f"swift_server: the {kind} server does not answer")
        time.sleep(0.05)


def signed_headers(method, host, path):
    """AWS Signature Version 4 of a request without a body, as its documentation says."""
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    scope = f"{now[:8]}/{REGION}/s3/aws4_request"
    empty = hashlib.sha256(b"").hexdigest()
    names = "host;x-amz-content-sha256;x-amz-date"
    canonical = f"{method}\n{path}\n\nhost:{host}\nx-amz-content-sha256:{empty}\nx-amz-date:{now}\n\n{names}\n{empty}"
    key = ("AWS4" + SECRET_KEY).encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    return {"x-amz-date": now, "x-amz-content-sha256": empty,
            "Authorization": f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{scope}, SignedHeaders={names}, "
                             f"Signature={signature}"}


def make_bucket(proxy, deadline):
    while True:
        try:
            request(proxy + "/recon", "PUT", signed_headers("PUT", proxy.removeprefix("http://"), "/recon"))
            return
        except OSError as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if refused or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    directory = os.path.abspath(sys.argv[1])
    os.makedirs(os.path.join(directory, "devices", "one"), exist_ok=True)
    user = subprocess.run(["id", "-un"], check=True, capture_output=True, text=True).stdout.strip()
    with open(os.path.join(directory, "swift.conf"), "w") as out:
        out.write(SWIFT_CONF)
    ports = free_ports(len(SERVERS) + 1)
    os.environ["SWIFT_DIR"] = directory
    for kind, port in zip(SERVERS, ports):
        make_ring(directory, kind, port)
    facts = {"directory": directory, "user": user, "log_port": keep_log(directory)}
    children = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        deadline = time.monotonic() + 150
        confs = [(kind, STORAGE_CONF.format(kind=kind, port=port, **facts)) for kind, port in zip(SERVERS, ports)]
        for kind, conf in confs:
            children.append(start(directory, kind, conf))
        # The proxy last: it must not find a storage server that does not answer yet.
        for (kind, _), port, child in zip(confs, ports, children):
            wait_until_healthy(kind, port, child, deadline)
        children.append(start(directory, "proxy", PROXY_CONF.format(port=ports[-1], **facts)))
        wait_until_healthy("proxy", ports[-1], children[-1], deadline)
        proxy = f"http://127.0.0.1:{ports[-1]}"
        make_bucket(proxy, deadline)
        print("ready " + proxy, flush=True)
        signal.pause()
    finally:
        for child in children:
            child.kill()
            child.wait()


if __name__ == "__main__":
    main()
