from h import *
import multiprocessing as mp, concurrent.futures as cf, asyncio, gc, random
def f(x=0): return x
def nap(s): time.sleep(s); return s
class V: 
    def __init__(self): self.v=1
    def get(self): return self.v
    def slow(self): time.sleep(1.5)
def child_wait(pid, limit=8):
    e=time.time()+limit
    while time.time()<e:
        p,s=os.waitpid(pid,os.WNOHANG)
        if p: return s
        time.sleep(.02)
    os.kill(pid,9); os.waitpid(pid,0); return "CHILDHANG"
# 1 fork in then-callback (on tw thread)
def fork_exit(*_):
    pid=os.fork()
    if pid==0:
        try: rpc.rpc_sync("w1",f)
        except RuntimeError as e: os._exit(7)
        except BaseException: os._exit(8)
        os._exit(9)
    return child_wait(pid)
def c1():
    init(0,2)
    for i in range(5):
        fu=rpc.rpc_async("w1",f,(i,)).then(fork_exit); tried("then fork", fu.wait)
    tried("handler fork", rpc.rpc_sync,"w1",fork_exit)
    tried("handler fork async", lambda: [rpc.rpc_async("w1",fork_exit) for _ in range(5)][-1].wait())
    rpc.shutdown()
def plain(): init(1,2); rpc.shutdown()
# 2 fork in __del__ of owned value
class DelFork:
    def __del__(self):
        s=fork_exit(); say("del fork child",s)
def c2():
    init(0,2)
    r=[rpc.remote("w1",DelFork) for _ in range(3)]
    for x in r: tried("confirmed",x.confirmed_by_owner)
    time.sleep(.3); del r,x; time.sleep(1)
    tried("after",rpc.rpc_sync,"w1",f); rpc.shutdown()
# 3 pool in handler
def pool(kind="fork"):
    with mp.get_context(kind).Pool(2) as p: return p.map(abs,[-1,-2,-3])
def ppe(kind="fork"):
    with cf.ProcessPoolExecutor(2,mp_context=mp.get_context(kind)) as p: return list(p.map(abs,[-1,-2]))
def dl():
    from torch.utils.data import DataLoader
    return [int(b.sum()) for b in DataLoader(list(range(8)),batch_size=4,num_workers=2)]
def tmpq():
    import torch.multiprocessing as tm
    c=tm.get_context("fork"); q=c.Queue(); p=c.Process(target=lambda: (q.put(torch.ones(1000)), time.sleep(.5))); p.start(); v=q.get(timeout=10); p.join(10); return float(v.sum()),p.exitcode
def c3():
    init(0,2,timeout=20)
    for k in (pool,ppe,dl,tmpq): tried(k.__name__, rpc.rpc_sync,"w1",k); 
    for k in (pool,ppe,dl,tmpq): tried("then "+k.__name__, rpc.rpc_async("w1",f).then(lambda _:k()).wait)
    for k in (pool,ppe): 
        for kind in ("forkserver","spawn"): tried(k.__name__+kind, rpc.rpc_sync,"w1",k,(kind,))
    rpc.shutdown()
# 4 alarm raising in to_here in context
class Boom(Exception): pass
def boom(*_): raise Boom("x")
def slow_v(): time.sleep(1.5); return torch.ones(3,requires_grad=True)
def c4():
    init(0,2)
    signal.signal(signal.SIGALRM,boom)
    for i in range(3):
        def g():
            with da.context() as c:
                r=rpc.remote("w1",slow_v); signal.setitimer(signal.ITIMER_REAL,.3); return r.to_here()
        tried("to_here in ctx",g,limit=1)
        def g2():
            with da.context() as c:
                x=torch.ones(3,requires_grad=True); y=rpc.rpc_sync("w1",slow_add,(x,)).sum(); signal.setitimer(signal.ITIMER_REAL,.3); da.backward(c,[y])
        tried("backward",g2,limit=1.5)
        def g3():
            with da.context() as c:
                r=rpc.remote("w1",V); signal.setitimer(signal.ITIMER_REAL,.3); return r.rpc_sync().slow()

        tried("proxy",g3,limit=1)
        def g4():
            signal.setitimer(signal.ITIMER_REAL,.3); return rpc.rpc_sync("w1",asyncslow)
        tried("async exec",g4,limit=1)
        def g5():
            signal.setitimer(signal.ITIMER_REAL,.3); return rpc.rpc_sync("w1",script_slow,(torch.ones(2),300000))
        tried("script",g5,limit=1.5)
        def g6():
            signal.setitimer(signal.ITIMER_REAL,.3); return rpc.remote("w1",script_slow,(torch.ones(2),300000)).to_here()
        tried("script remote",g6,limit=1.5)
        def g7():
            signal.setitimer(signal.ITIMER_REAL,.3); return rpc.remote("w1",script_slow,(torch.ones(2),300000)).local_value()

        def g8():
            signal.setitimer(signal.ITIMER_REAL,.3); return rpc.remote("w0",slow_v).to_here()
        tried("own to_here",g8,limit=1)
        def g9():
            signal.setitimer(signal.ITIMER_REAL,.3); return script_caller("w1",torch.ones(2),300000)
        if os.environ.get("SC"): tried("script caller",g9,limit=1.5)
        def g10():
            signal.setitimer(signal.ITIMER_REAL,.3); return rpc.rpc_async("w1",nap,(1.5,)).then(lambda x:x.wait()).wait()
        tried("then.wait",g10,limit=1)
        def g11():
            signal.setitimer(signal.ITIMER_REAL,.3)
            async def m():
                fu=rpc.rpc_async("w1",nap,(1.5,)); l=asyncio.get_running_loop(); a=l.create_future(); fu.add_done_callback(lambda x:l.call_soon_threadsafe(a.set_result,x.value())); return await a
            return asyncio.run(m())
        tried("asyncio",g11,limit=1)
    time.sleep(2); gc.collect(); tbooks("w0"); tried("peer",rpc.rpc_sync,"w1",books)
    t=time.time(); rpc.shutdown(); say("shutdown",time.time()-t)
class SlowB(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): return x*2
    @staticmethod
    def backward(ctx,g): time.sleep(1.5); return g
def slow_add(x): return SlowB.apply(x)
@rpc.functions.async_execution
def asyncslow(): return rpc.rpc_async("w0",nap,(1.5,))
@torch.jit.script
def script_slow(x: torch.Tensor, n: int) -> torch.Tensor:
    for i in range(n): x = x + 1
    return x
@torch.jit.script
def script_caller(to: str, x: torch.Tensor, n: int) -> torch.Tensor:
    f = rpc.rpc_async(to, script_slow, (x, n))
    return f.wait()
# 5 kill while 64 MiB travels both ways
def big(t): return t
def c5():
    init(0,3)
    me=os.getpid(); pid=rpc.rpc_sync("w1",os.getpid)
    x=torch.ones(16<<20)
    fs=[rpc.rpc_async("w1",big,(x,)) for _ in range(4)]
    rr=[rpc.remote("w1",big,(x,)) for _ in range(2)]
    time.sleep(random.random()*.15); os.kill(pid,9); t=time.time()
    for q in fs: tried("big",q.wait,limit=2)
    for q in rr: tried("rr",q.to_here,limit=2)
    del rr,q,fs; gc.collect(); tbooks()
    tried("shutdown",rpc.shutdown)
def w1_3(): init(1,3); rpc.shutdown()
def w2_3(): init(2,3); rpc.shutdown()
# 6 SIGSTOP/CONT around shutdown
def c6():
    init(0,2); pid=rpc.rpc_sync("w1",os.getpid)
    os.kill(pid,signal.SIGSTOP); threading.Timer(3,lambda:os.kill(pid,signal.SIGCONT)).start()
    tried("shutdown",rpc.shutdown)
# 7 stdout closed
def c7():
    init(0,2); os.close(0); 
    r=rpc.remote("w1",V); r.to_here(); tried("call",rpc.rpc_sync,"w1",f); os.close(1); os.close(2)
    r2=rpc.remote("w1",V); r2.to_here(); rpc.shutdown()
def c7b():
    os.close(0);os.close(1);os.close(2)
    init(1,2); rpc.shutdown()
# 8 wakeup fd & faulthandler
def c8():
    import faulthandler, socket; faulthandler.enable(); faulthandler.dump_traceback_later(40); a,b=socket.socketpair(); a.setblocking(False); signal.set_wakeup_fd(a.fileno()); 
    hits=[]; signal.signal(signal.SIGALRM,lambda *x:hits.append(1)); signal.setitimer(signal.ITIMER_REAL,.01,.01)
    init(0,2)
    for i in range(200): rpc.rpc_sync("w1",f,(i,))
    r=rpc.remote("w1",V); tried("v",r.rpc_sync().get)
    with da.context() as c:
        x=torch.ones(3,requires_grad=True); da.backward(c,[rpc.rpc_sync("w1",torch.add,(x,x)).sum()]); say(list(da.get_gradients(c).values()))
    del r
    rpc.shutdown(); say("hits",len(hits))
# 9 sys.exit in a thread in init; daemon threads at exit
def c9():
    def t():
        init(0,2); sys.exit(3)
    th=threading.Thread(target=t); th.start(); th.join(); tried("call",rpc.rpc_sync,"w1",f); rpc.shutdown()
# 10 execv after an RRef
def c10():
    init(0,2); r=rpc.remote("w1",V); r.to_here(); say(rpc.rpc_sync("w1",lambda_books,())); os.execv("/bin/sleep",["sleep","8"])
def lambda_books(): return books()
def c10b():
    init(1,2); time.sleep(4); tbooks("exec"); tried("call",rpc.rpc_sync,"w0",f); tried("shutdown",rpc.shutdown)
# 11 child forks and execs while parent holds; child keeps fds?
def c11():
    init(0,2); r=rpc.remote("w1",V); r.to_here()
    import subprocess as sp
    pid=os.fork()
    if pid==0: del r; os.execv("/bin/sh",["sh","-c","ls -l /proc/self/fd | grep -v pipe; sleep 20"])
    time.sleep(.5); os._exit(3)
def c11b():
    init(1,2); time.sleep(3); tried("call",rpc.rpc_sync,"w0",f,limit=2); tbooks(); tried("shutdown",rpc.shutdown)
C=dict(c1=[c1,plain],c2=[c2,plain],c3=[c3,plain],c4=[c4,plain],c5=[c5,w1_3,w2_3],c6=[c6,plain],c7=[c7,c7b],c8=[c8,plain],c9=[c9,plain],c10=[c10,c10b],c11=[c11,c11b])
if __name__=="__main__": main(C)
