# Template: `cargo xtask package` fills in version, addresses and checksums.
class Gristmill < Formula
  desc "Run large language models from GGUF files, with kernels compiled for this machine"
  homepage "@URL@"
  version "@VERSION@"
  license any_of: ["Apache-2.0", "MIT"]
  depends_on :linux

  on_intel do
    url "@URL@/gristmill-@VERSION@-x86_64-unknown-linux-gnu.tar.gz"
    sha256 "@SHA256 x86_64-unknown-linux-gnu@"
  end
  on_arm do
    url "@URL@/gristmill-@VERSION@-aarch64-unknown-linux-gnu.tar.gz"
    sha256 "@SHA256 aarch64-unknown-linux-gnu@"
  end

  def install
    bin.install "bin/gristmill"
    lib.install "lib/gristmill"
  end

  test do
    assert_match "tokens", shell_output("#{bin}/gristmill run demo Hello -n 4 2>&1")
  end
end
