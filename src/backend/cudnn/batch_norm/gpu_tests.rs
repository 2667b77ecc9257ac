//! Tests that need an NVIDIA GPU and cuDNN:
//! `cargo test --lib batch_norm::gpu_tests -- --ignored --test-threads=1 --nocapture`.
