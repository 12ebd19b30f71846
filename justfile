# The commands of a developer's day. `just` lists them; each also works when typed by hand.

_default:
    @just --list --unsorted

# Build the gateway as users have it
build:
    cargo build --release

# Run the tests; arguments choose some, as in `just test --test it -- reload`
test *args='--tests':
    cargo test {{ args }}

# Check with clippy, all targets
lint:
    cargo clippy --all-targets --test e2e -- -D warnings

# Format the code
format:
    cargo fmt --all

# Send calls through servers that misbehave: `--calls N`, `--front mcp`, `--kill SECONDS`
storm *args='--calls 1000000':
    cargo test --release --test storm -- {{ args }}

# Compare throughput and latency with a bare HTTP server
load *args:
    cargo run --release --example load -- {{ args }}

# Run the official MCP conformance suite
conformance: build
    tests/conformance/run target/release/trunkline

# Run the official SDKs as clients
interop: build
    tests/interop/run target/release/trunkline

# Break parts of the compose stack under load (needs Docker)
e2e *args: build
    tests/e2e/run target/release/trunkline {{ args }}

# Write docs/reference again, from the code
reference:
    UPDATE_REFERENCE=1 cargo test --test reference

# Check everything that a change must pass: 15 minutes on 2 cores
ci:
    .ci/run

# Run the long proofs, before a release
long:
    .ci/long

# Check, and build all that a release publishes into dist/; prints what to push
release version:
    packaging/release {{ version }}
