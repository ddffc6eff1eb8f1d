from tests.serving.conftest import served

__all__ = ["served"]
