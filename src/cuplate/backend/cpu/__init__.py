"""Runs kernels on this machine's CPU: source, build, engine, checker. Importing it loads no other module."""
