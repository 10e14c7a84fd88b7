from h import *
import a1,a2,a3
from a1 import *
from a2 import *
from a3 import *
def plain(t=6):
    init(1,2); rpc.shutdown()
def e3(op=None, reset=True):
    init(0,2,timeout=10); random.seed(time.time())
    def h(*_): 
        if armed[0]: raise KI()
    armed=[False]
    signal.signal(signal.SIGALRM,h); e=time.time()+float(os.environ.get("E3T","8")); n=k=0; errs={}
    op0=random.randrange
    if op is not None: random.randrange=lambda m: op if m==9 else op0(m)
    while time.time()<e:
        t=time.time()
        try:
            armed[0]=True; signal.setitimer(signal.ITIMER_REAL,10**random.uniform(-5,-1.5)); ops(); armed[0]=False; n+=1
        except KI: armed[0]=False; k+=1
        except BaseException as x: 
            armed[0]=False; s=repr(x)[:250]; errs[s]=errs.get(s,0)+1
            if "Already have" in s:
                c=da._current_context()._context_id() if hasattr(da,"_current_context") else None
                from torch._C._distributed_autograd import _current_context,_release_context
                try: _release_context(_current_context()._context_id())
                except BaseException as y: errs[repr(y)[:100]]=1; break
        armed[0]=False; signal.setitimer(signal.ITIMER_REAL,0)
        if time.time()-t>1: errs["SLOW %.1f"%(time.time()-t)]=1
    say("op",op,"done",n,"interrupted",k,errs); gc.collect(); 
    if os.environ["ADVB"]=="torchwire": tbooks(); tried("p",rpc.rpc_sync,"w1",books)
    time.sleep(.5); tried("sd",rpc.shutdown,limit=2)
E3={f"op{i}":[lambda i=i:e3(i),plain] for i in range(9)}; E3["e3"]=[e3,plain]
# k
def kk():
    init(0,2,timeout=8); signal.signal(signal.SIGALRM,boom)
    def alarm(): signal.setitimer(signal.ITIMER_REAL,.3)
    def k(): r=rpc.remote("w1",nap,(1.5,)); alarm(); return r.rpc_async().bit_length().wait()
    def j(): r=rpc.remote("w1",nap,(1.5,)); alarm(); return r.remote().bit_length().to_here()
    def s(): r=rpc.remote("w1",nap,(1.5,)); alarm(); return r.rpc_sync().bit_length()
    for fn in (j,s,k):
        for i in range(3):
            tried(fn.__name__,fn,limit=1); time.sleep(2.5); gc.collect()
            if os.environ["ADVB"]=="torchwire": tbooks()
    if os.environ["ADVB"]=="torchwire": time.sleep(6); gc.collect(); tbooks("after 6"); tried("p",rpc.rpc_sync,"w1",books)
    tried("sd",rpc.shutdown)
def dd():
    init(0,2,timeout=12); signal.signal(signal.SIGALRM,boom)
    def alarm(): signal.setitimer(signal.ITIMER_REAL,.3)
    def d(n):
        with da.context() as cc: r=rpc.remote("w1",slow_lossn,(n,)); alarm(); return r.backward(cc)
    for n in (1.5,4,20): tried("rref.backward",d,n,limit=1)
    def d2(n):
        r=rpc.remote("w0",slow_lossn,(n,))
        with da.context() as cc: alarm(); return r.backward(cc)
    for n in (1.5,4): tried("own rref.backward",d2,n,limit=1)
    tried("sd",rpc.shutdown)
def slow_lossn(n): time.sleep(n); return torch.ones(1,requires_grad=True).sum()
E3.update(kk=[kk,plain],dd=[dd,plain])
if __name__=="__main__": main(E3)
