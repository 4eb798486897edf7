"""A run over several processes: who they are, how they are started, meet, share the work and notice that one is gone."""
