"""Stages, replicas, tensor degrees and variants of layers by the rule of Piper, exactly."""
