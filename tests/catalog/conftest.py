from tests.catalog.places import local, place

__all__ = ["local", "place"]
