"""The build backend: setuptools, which asks for cmake and ninja only where the machine has none, and which
refuses an environment whose torch is outside the supported range instead of letting pip replace that
torch."""

import os
import shutil

import torch_of_environment as environment
from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403


def _tools(config_settings: dict | None) -> list[str]:
    if os.environ.get("LIBPOM_DISABLE_EXTENSION", "0") not in ("", "0") or environment.find() is None:
        return []
    wanted = {"cmake": "cmake>=3.24", "ninja": "ninja"}
    return [requirement for program, requirement in wanted.items() if shutil.which(program) is None]


def get_requires_for_build_wheel(config_settings: dict | None = None) -> list[str]:
    environment.check()
    return build_meta.get_requires_for_build_wheel(config_settings) + _tools(config_settings)


def get_requires_for_build_editable(config_settings: dict | None = None) -> list[str]:
    environment.check()
    return build_meta.get_requires_for_build_editable(config_settings) + _tools(config_settings)


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: dict | None = None) -> str:
    environment.check()
    return build_meta.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: dict | None = None) -> str:
    environment.check()
    return build_meta.prepare_metadata_for_build_editable(metadata_directory, config_settings)
