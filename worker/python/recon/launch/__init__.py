"""Parts of `recon run`. They use the standard library only."""
