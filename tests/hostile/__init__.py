"""A hostile world around a real worker: what answers, reports and files can be made of to hurt it."""
