from h import *
import a1
from a1 import *
import concurrent.futures as cf
def plain(t=6):
    init(1,2); rpc.shutdown()
# d1: fork inside handler of signal in various waits with context; pool inside then etc. ; fork in handler while holding RRef args; child returns exceptions
def handler_fork_raise():
    pid=os.fork()
    if pid==0: raise ValueError("child raises")     # must not reply
    return child_wait(pid)
def handler_fork_sysexit():
    pid=os.fork()
    if pid==0: sys.exit(5)
    return child_wait(pid)
def handler_fork_thread():
    pid=os.fork()
    if pid==0:
        t=threading.Thread(target=lambda: time.sleep(.2)); t.start(); t.join()
        import gc; gc.collect(); return "childreturn"
    return child_wait(pid)
def handler_fork_child_init():
    pid=os.fork()
    if pid==0:
        try:
            import tempfile
            init(0,1,store=tempfile.mkdtemp()+"/s"); v=rpc.rpc_sync("w0",f,(3,)); rpc.shutdown(); os._exit(v)
        except BaseException as e: say("childinit",type(e),e); os._exit(99)
    return child_wait(pid)
def local_graph_fork():
    pid=os.fork()
    if pid==0:
        x=torch.ones(3,requires_grad=True); (x*2).sum().backward(); os._exit(int(x.grad.sum()))
    return child_wait(pid)
def ctx_fork():
    with da.context() as c:
        pid=os.fork()
        if pid==0:
            try: da.backward(c,[torch.ones(1,requires_grad=True).sum()])
            except RuntimeError: os._exit(4)
            os._exit(5)
        return child_wait(pid)
def d1():
    init(0,2,timeout=15)
    for h in (handler_fork_raise,handler_fork_sysexit,handler_fork_thread,handler_fork_child_init,local_graph_fork,ctx_fork):
        tried(h.__name__,rpc.rpc_sync,"w1",h); tried(h.__name__+" remote",lambda: rpc.remote("w1",h).to_here())
        tried("then "+h.__name__, rpc.rpc_async("w1",f).then(lambda _:h()).wait)
        if h not in (handler_fork_raise,handler_fork_sysexit,handler_fork_thread): tried("local "+h.__name__,h)
        with da.context(): tried(h.__name__+" ctx",rpc.rpc_sync,"w1",h)
        time.sleep(.2)
    tbooks(); tried("p",rpc.rpc_sync,"w1",books)
    tried("shutdown",rpc.shutdown)
# d2: fork in backward hook / Function.backward on callee
class ForkB(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): return x*2
    @staticmethod
    def backward(ctx,g):
        pid=os.fork()
        if pid==0: os._exit(0)
        child_wait(pid); return g*2
class ForkRet(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): return x*2
    @staticmethod
    def backward(ctx,g):
        pid=os.fork()
        if pid==0: return g*5
        child_wait(pid); return g*2
def fb(x): return ForkB.apply(x)
def fr(x): return ForkRet.apply(x)
def d2():
    init(0,2,timeout=10)
    for fn in (fb,fr):
      for loc in (0,1):
        def g():
            with da.context() as c:
                x=torch.ones(2,requires_grad=True); y=rpc.rpc_sync("w1",fn,(x,)) if not loc else fn(rpc.rpc_sync("w1",torch.add,(x,x)))
                da.backward(c,[y.sum()]); return da.get_gradients(c)[x]
        tried(f"{fn.__name__} local={loc}",g)
    tbooks(); tried("p",rpc.rpc_sync,"w1",books)
    tried("shutdown",rpc.shutdown)
# d3: exception raised by signal in done callbacks / add_done_callback sys.exit / handlers SystemExit, KeyboardInterrupt
def h_exit(): sys.exit(3)
def h_kb(): raise KeyboardInterrupt("x")
def h_ge(): raise GeneratorExit()
class BadRepr(Exception):
    def __repr__(self): sys.exit(9)
    def __str__(self): os.kill(os.getpid(),0); raise KeyboardInterrupt
    def __reduce__(self): raise SystemExit(2)
def h_bad(): raise BadRepr()
@rpc.functions.async_execution
def a_exit(): return rpc.rpc_async("w0",f).then(lambda _: sys.exit(3))
@rpc.functions.async_execution
def a_never(): return torch.futures.Future()
class Mod(torch.nn.Module):
    def __init__(self): super().__init__(); self.l=torch.nn.Linear(2,2)
    def forward(self,x): time.sleep(1.5); return self.l(x)
class ExitInit:
    def __init__(self): sys.exit(4)
def d3():
    init(0,2,timeout=4)
    for h in (h_exit,h_kb,h_ge,h_bad,a_exit):
        tried(h.__name__,rpc.rpc_sync,"w1",h); tried(h.__name__+" remote",lambda: rpc.remote("w1",h).to_here()); 
        def pr(): return rpc.remote("w1",h).rpc_sync().foo()
        tried(h.__name__+" proxy",pr)
        tried(h.__name__+" local",rpc.rpc_sync,"w0",h)
    tried("exitinit",lambda: rpc.remote("w1",ExitInit).to_here())
    tried("then exit",lambda: rpc.rpc_async("w1",f).then(lambda _:sys.exit(3)).wait())
    def ad():
        x=rpc.rpc_async("w1",f); x.add_done_callback(lambda _:sys.exit(3)); x.wait(); time.sleep(.1)
    tried("done exit",ad)
    signal.signal(signal.SIGTERM,a1.boom)
    def kill(): threading.Timer(.3,lambda:os.kill(os.getpid(),15)).start()
    def rm():
        from torch.distributed.nn.api.remote_module import RemoteModule
        m=RemoteModule("w1/cpu",Mod); kill(); return m.forward(torch.ones(2))
    for i in range(3): tried("RemoteModule",rm,limit=1)
    def rmp():
        from torch.distributed.nn.api.remote_module import RemoteModule
        m=RemoteModule("w1/cpu",Mod); kill(); x=m.forward_async(torch.ones(2)); return torch.futures.collect_all([x]).wait()
    tried("RemoteModule async",rmp,limit=1)
    def rmc():
        from torch.distributed.nn.api.remote_module import RemoteModule
        threading.Timer(.3,lambda:os.kill(os.getpid(),15)).start(); return RemoteModule("w1/cpu",SlowMod)
    tried("RemoteModule ctor",rmc,limit=1)
    def opt():
        from torch.distributed.optim import DistributedOptimizer
        kill(); o=DistributedOptimizer(SlowOpt,[rpc.RRef(torch.ones(2,requires_grad=True)), rpc.remote("w1",leaf)],lr=.1)
    tried("DistOpt",opt,limit=1)
    def never(): kill(); return rpc.rpc_sync("w1",a_never)
    tried("never",never,limit=1)
    def neverr(): kill(); return rpc.remote("w1",a_never).to_here()
    tried("neverr",neverr,limit=1)
    def tohereself():
        r=rpc.remote("w1",nap,(1.5,)); kill(); return rpc.rpc_sync("w1",ident,(r,))
    tried("pass rref",tohereself,limit=1)
    time.sleep(4.5); gc.collect(); tbooks(); tried("p",rpc.rpc_sync,"w1",books)
    tried("shutdown",rpc.shutdown)
def ident(r): return r.to_here()
def leaf(): return rpc.RRef(torch.ones(2,requires_grad=True)).local_value()
class SlowOpt(torch.optim.SGD):
    def __init__(s,*a,**k): time.sleep(1.5); super().__init__(*a,**k)
class SlowMod(Mod):
    def __init__(s): time.sleep(1.5); super().__init__()
# d4: stdout pipe full in the peer: the program itself; stderr pipe full at death
def d4():
    init(0,3); r,w=os.pipe(); os.set_blocking(w,False)
    try:
        while True: os.write(w,b"x"*4096)
    except BlockingIOError: pass
    os.set_blocking(w,True); keep=os.dup(2); os.dup2(w,2)
    rr=[rpc.remote("w1",V) for _ in range(5)]; [x.to_here() for x in rr]; own=rpc.rpc_sync("w1",mk); 
    pid=rpc.rpc_sync("w1",os.getpid); os.kill(pid,9)
    tried("call",rpc.rpc_sync,"w1",f,limit=2); tried("w2",rpc.rpc_sync,"w2",f,limit=2); del rr,own; gc.collect(); tbooks(); tried("shutdown",rpc.shutdown); 
def mk(): return rpc.RRef(3)
# d5: thread forks amid shutdown; fork child exits normally with threads; os.fork in atexit after/before
import atexit
def d5():
    def a():
        pid=os.fork()
        if pid==0: os._exit(0)
        say("atexit fork",child_wait(pid)); tried("atexit call",rpc.rpc_sync,"w1",f)
    atexit.register(a); init(0,2)
    def b(): pid=os.fork(); (os._exit(0) if pid==0 else say("atexit2 fork",child_wait(pid)))
    atexit.register(rpc.shutdown); atexit.register(b)
def d6(): # sys.exit in non-main thread during init_rpc interrupted by peer never coming
    def t():
        try: init(0,2,timeout=3)
        except RuntimeError as e: say("init failed",str(e)[:200]); sys.exit(3)
    th=threading.Thread(target=t,daemon=True); th.start(); time.sleep(.7); say("main ends")
def noop(): time.sleep(1)
def d6b():
    try: init(1,2,timeout=3)
    except RuntimeError as e: say("peer init failed",str(e)[:300])
    else: tried("shutdown",rpc.shutdown)
# d7: second init after interrupted
def d7():
    signal.signal(signal.SIGALRM,a1.boom)
    def one():
        signal.setitimer(signal.ITIMER_REAL,.4); init(0,1 if False else 2,timeout=5,store=tempfile.gettempdir()+"/x%d"%os.getpid())
    for i in range(3): tried("init interrupted",one)
    import torch.distributed.rpc as r
    rpc.api._init_counter=0; r._init_counter=0
    init(0,2); tried("call",rpc.rpc_sync,"w1",f)
    def sd(): signal.setitimer(signal.ITIMER_REAL,.4); rpc.shutdown()
    tried("shutdown interrupted",sd); tried("call",rpc.rpc_sync,"w1",f); tried("books",books); tried("shutdown2",rpc.shutdown,graceful=False)
    r._init_counter=0
    init(0,1,store=tempfile.gettempdir()+"/y%d"%os.getpid()); tried("call",rpc.rpc_sync,"w0",f); tried("sd",rpc.shutdown)
def d7b(): init(1,2); time.sleep(2); tried("peer sd",rpc.shutdown)
# d8: daemon threads at exit in various
def d8():
    init(0,2)
    def loop(fn):
        while True:
            try: fn()
            except RuntimeError: time.sleep(.001)
    def th1(): rpc.rpc_async("w1",f).then(lambda x:x.value()).wait()
    def th2():
        with da.context() as c:
            x=torch.ones(2,requires_grad=True); da.backward(c,[rpc.rpc_sync("w1",torch.add,(x,x)).sum()])
    def th3(): rpc.remote("w1",V).rpc_sync().get()
    def th4(): script_caller("w1",torch.ones(1),3)
    def th5(): torch.futures.wait_all([rpc.rpc_async("w1",f) for _ in range(3)])
    def th6(): rpc.rpc_async("w1",f).add_done_callback(lambda x: None)
    def th7(): asyncio.run(asyncio.sleep(0)); rpc.remote("w0",V).to_here()
    for x in (th1,th2,th3,th4,th5,th6,th7): threading.Thread(target=loop,args=(x,),daemon=True).start()
    time.sleep(1)
def d8b():
    init(1,2); time.sleep(1)
    for i in range(100):
        try: rpc.rpc_sync("w0",f); time.sleep(.05)
        except RuntimeError as e: say(type(e).__name__,str(e)[:200]); break
    tbooks("w1"); tried("sd",rpc.shutdown)
# d9 executor with signals: ThreadPoolExecutor threads non daemon at exit
def d9():
    init(0,2); ex=cf.ThreadPoolExecutor(4); fs=[ex.submit(rpc.rpc_sync,"w1",nap,(1,)) for _ in range(4)]; time.sleep(.2); atexit.register(lambda: say("results",[x.result() for x in fs])); atexit.register(rpc.shutdown)
D=dict(d1=[d1,plain],d2=[d2,plain],d3=[d3,plain],d4=[d4,a1.w1_3,a1.w2_3],d5=[d5,plain],d6=[d6,d6b],d7=[d7,d7b],d8=[d8,d8b],d9=[d9,plain])
if __name__=="__main__":
    for k,v in list(globals().items()):
        if getattr(v,"__module__",None)=="__main__": pass
    main(D)
