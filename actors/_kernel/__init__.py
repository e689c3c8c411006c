"""The kernel: pykka actors on one event loop. Private; hosts meet it through `Runtime` and `LoopActor`."""
