from h import *
import a1, a2
from a1 import *
from a2 import *
def plain(t=6):
    init(1,2); rpc.shutdown()
class KI(KeyboardInterrupt): pass
def add1(x): return x+1
def passit(r): return r.to_here()+1
def mkref(x): return rpc.RRef(x)
@rpc.functions.async_execution
def aex(x): return rpc.rpc_async("w0",add1,(x,)).then(lambda v: v.wait()+1)
def ops():
    n=random.randrange(1000); op=random.randrange(9)
    if op==0: assert rpc.rpc_sync("w1",add1,(n,))==n+1
    elif op==1: assert rpc.remote("w1",add1,(n,)).to_here()==n+1
    elif op==2: assert rpc.rpc_sync("w1",passit,(rpc.remote("w1",add1,(n,)),))==n+2
    elif op==3:
        with da.context() as c:
            x=torch.full((3,),float(n),requires_grad=True); y=rpc.rpc_sync("w1",torch.mul,(x,x)); da.backward(c,[y.sum()]); assert da.get_gradients(c)[x].tolist()==[2.*n]*3
    elif op==4: assert rpc.rpc_sync("w1",aex,(n,))==n+2
    elif op==5: assert rpc.rpc_sync("w1",mkref,(n,)).to_here()==n
    elif op==6: assert rpc.remote("w1",V).rpc_sync().get()==1
    elif op==7: assert [x for x in torch.futures.wait_all([rpc.rpc_async("w1",add1,(n+i,)) for i in range(4)])]==[n+1+i for i in range(4)]
    elif op==8: 
        t=torch.full((100000,),n); assert rpc.rpc_sync("w1",torch.add,(t,1))[7]==n+1
# e2: handlers that act (not raise)
def e2():
    init(0,2,timeout=10); depth=[0]; cnt=[0]; errs=[]
    def h(*_):
        if depth[0]: return
        depth[0]=1; cnt[0]+=1
        try: ops()
        except BaseException as e: errs.append(repr(e)[:300])
        finally: depth[0]=0
    signal.signal(signal.SIGALRM,h); signal.setitimer(signal.ITIMER_REAL,.004,.004)
    e=time.time()+8; n=0
    while time.time()<e:
        t=time.time()
        try: ops(); n+=1
        except BaseException as x: errs.append("main "+repr(x)[:300])
        if time.time()-t>6: errs.append("SLOW")
    signal.setitimer(signal.ITIMER_REAL,0); say("done",n,cnt,len(errs),errs[:3]); gc.collect(); tbooks(); tried("p",rpc.rpc_sync,"w1",books); tried("sd",rpc.shutdown)
def e3():
    init(0,2,timeout=10); random.seed(time.time())
    def h(*_): raise KI()
    signal.signal(signal.SIGALRM,h); e=time.time()+float(os.environ.get("E3T","10")); n=k=0; errs={}
    while time.time()<e:
        t=time.time()
        try:
            signal.setitimer(signal.ITIMER_REAL,10**random.uniform(-5,-1.5)); ops(); signal.setitimer(signal.ITIMER_REAL,0); n+=1
        except KI: k+=1
        except BaseException as x: errs[repr(x)[:400]]=errs.get(repr(x)[:400],0)+1
        try: signal.setitimer(signal.ITIMER_REAL,0)
        except KI: pass
        if time.time()-t>1: errs["SLOW %.1f"%(time.time()-t)]=1
    say("done",n,"interrupted",k,errs); gc.collect(); tbooks(); tried("p",rpc.rpc_sync,"w1",books); time.sleep(.5); tried("sd",rpc.shutdown,limit=2)
# e4: more waits
class Slow2:
    def slow(self): time.sleep(1.5)
    def __getstate__(self): time.sleep(1.5); return {}
class SlowIn:
    def __reduce__(self): return (slowin,())
def slowin(): time.sleep(1.5); return 1
def e4():
    init(0,2,timeout=8); signal.signal(signal.SIGALRM,boom)
    def alarm(): signal.setitimer(signal.ITIMER_REAL,.3)
    def a(): r=rpc.remote("w1",nap,(1.5,)); alarm(); return r._get_type()
    def a2(): r=rpc.remote("w1",nap,(1.5,)); alarm(); return r._get_type(timeout=5)
    def b(): r=rpc.remote("w0",nap,(1.5,)); alarm(); return r.local_value()
    def c(): r=rpc.remote("w0",nap,(1.5,)); alarm(); return rpc.rpc_sync("w1",ident,(r,))
    def d():
        with da.context() as cc: r=rpc.remote("w1",slow_loss); alarm(); return r.backward(cc)
    def g(): alarm(); return rpc.api._all_gather(1,timeout=5)
    def g2(): alarm(); return rpc.api._barrier({"w0","w1"})
    def h():
        alarm()
        with rpc.api._wait_all(): rpc.rpc_async("w1",nap,(1.5,))
    def i(): alarm(); return rpc.rpc_sync("w1",slowin_echo,(SlowIn(),))
    def j(): r=rpc.remote("w1",nap,(1.5,)); alarm(); return r.remote().bit_length().to_here()
    def k(): r=rpc.remote("w1",nap,(1.5,)); alarm(); return r.rpc_async().bit_length().wait()
    def l():
        fs=[rpc.rpc_async("w1",nap,(1.5,)) for _ in range(3)]; alarm(); return torch.futures.collect_all(fs).then(lambda x:1).wait()
    def m(): alarm(); return rpc.rpc_async("w1",nap,(1.5,)).value()
    def n():
        fu=torch.futures.Future(); rpc.rpc_async("w1",nap,(1.5,)).add_done_callback(lambda x: fu.set_result(1)); alarm(); return fu.wait()
    def o():
        alarm()
        with da.context() as cc: return rpc.rpc_sync("w1",nap,(1.5,))
    def p():
        with torch.autograd.profiler.profile(): alarm(); return rpc.rpc_sync("w1",nap,(1.5,))
    def q():
        with torch.profiler.profile(): alarm(); return rpc.remote("w1",nap,(1.5,)).to_here()
    def s():
        r=rpc.remote("w1",nap,(1.5,)); alarm(); return scr_here(r)
    def u(): alarm(); return scr_sync("w1",torch.ones(1),200000)
    def v(): alarm(); return scr_async("w1",torch.ones(1),200000)
    def w():
        from torch.distributed.optim import DistributedOptimizer
        o=DistributedOptimizer(SlowStep,[rpc.remote("w1",leaf2)],lr=.1)
        with da.context() as cc: alarm(); o.step(cc)
    for fn in (a,a2,b,c,d,g,g2,h,i,j,k,l,m,n,o,p,q,w)+((s,u,v) if os.environ.get("SC") else ()):
        tried(fn.__name__,fn,limit=1)
        try: signal.setitimer(signal.ITIMER_REAL,0)
        except Boom: say("late Boom")
    time.sleep(2); gc.collect(); tbooks(); tried("p",rpc.rpc_sync,"w1",books); tried("sd",rpc.shutdown,limit=2)
def leaf2(): return torch.ones(2,requires_grad=True)
class SlowStep(torch.optim.SGD):
    def step(s,*a,**k): time.sleep(1.5)
def slow_loss(): time.sleep(1.5); return torch.ones(1,requires_grad=True).sum()
def slowin_echo(x): return x
@torch.jit.script
def scr_sync(to: str, x: torch.Tensor, n: int) -> torch.Tensor:
    return rpc.rpc_sync(to, script_slow, (x, n))
@torch.jit.script
def scr_async(to: str, x: torch.Tensor, n: int) -> torch.Tensor:
    f = rpc.rpc_async(to, script_slow, (x, n))
    return f.wait()
from torch.distributed.rpc import RRef
@torch.jit.script
def scr_here(r: RRef[float]) -> float: return r.to_here()
# e5: forks during storm of ops in threads incl. forks from threads, with children joining a new group
def e5():
    init(0,2,timeout=10); stop=[0]; errs=[]
    def run():
        while not stop[0]:
            try: ops()
            except BaseException as x: errs.append(repr(x)[:300])
    th=[threading.Thread(target=run) for _ in range(3)]; [t.start() for t in th]
    res={}
    for i in range(15):
        d=tempfile.mkdtemp()
        pid=os.fork() if i%3 else os.forkpty()[0]
        if pid==0:
            try:
                if i%2: 
                    init(0,1,store=d+"/s"); v=rpc.rpc_sync("w0",f,(3,)); r=rpc.remote("w0",V); assert r.to_here().v==1; del r; rpc.shutdown(); os._exit(v)
                else: gc.collect(); sys.exit(4)
            except SystemExit: raise
            except BaseException as x: say("child",repr(x)[:300]); os._exit(77)
        s=child_wait(pid,10); res[s]=res.get(s,0)+1
    stop[0]=1; [t.join() for t in th]; say(res,errs[:3]); gc.collect(); tbooks(); tried("p",rpc.rpc_sync,"w1",books); tried("sd",rpc.shutdown)
# e6: __del__ of globals call rpc at exit; object __del__ on owner calls back
class DelCall:
    def __init__(self,to): self.to=to
    def __del__(self):
        try: r=rpc.rpc_sync(self.to,f,(5,))
        except BaseException as e: r=type(e).__name__+str(e)[:80]
        say("delcall",r)
def e6():
    global G
    init(0,2); G=DelCall("w1"); r=rpc.remote("w1",DelCall,("w0",)); r.confirmed_by_owner(); time.sleep(.3); del r; time.sleep(.5); G2=rpc.remote("w1",DelCall,("w0",)); globals()["G3"]=G2
    rpc.rpc_sync("w1",f)
# e7 script functional errors when peer is killed
def e7():
    init(0,3,timeout=8); pid=rpc.rpc_sync("w1",os.getpid); threading.Timer(.5,lambda: os.kill(pid,9)).start()
    tried("script",scr_sync,"w1",torch.ones(1),3000000,limit=2); tried("script",scr_async,"w1",torch.ones(1),3000000,limit=2); tbooks(); tried("sd",rpc.shutdown)
E3=dict(e2=[e2,plain],e3=[e3,plain],e4=[e4,plain],e5=[e5,plain],e6=[e6,plain],e7=[e7,a1.w1_3,a1.w2_3])
if __name__=="__main__": main(E3)
