"""The metadata store on ZooKeeper: kazoo's session, with the two requests that it lacks."""
