from unit.host.conftest import sglang_with_plugins  # noqa: F401  a fixture
