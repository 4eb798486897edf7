"""The HTTP half of the runtime: OpenAI's endpoints, /generate, health and metrics in front of one engine.

Built on `engine.request` and the engine's five methods only; imports no torch, so that bad input is refused before
anything heavy loads. `process.serve` is what the command line calls, `app.build_app` what tests call.
"""
