"""harness: python adv.py CASE [torchwire|tensorpipe] ; spawns workers"""
import os, sys, subprocess, tempfile, time, threading, signal
import torch, torch.distributed.rpc as rpc
import torch.distributed.autograd as da
def tw():
    import torchwire; return torchwire
def init(rank, world, timeout=6, store=None, **kw):
    backend=os.environ.get("ADVB","torchwire"); store=store or os.environ["ADVS"]
    if backend=="torchwire":
        import torchwire
        if os.environ.get("ADVT"): kw["_transports"]=[os.environ["ADVT"]]
        o=torchwire.TorchwireRpcBackendOptions(init_method="file://"+store, rpc_timeout=timeout, **kw); b=rpc.BackendType.TORCHWIRE
    else:
        o=rpc.TensorPipeRpcBackendOptions(init_method="file://"+store, rpc_timeout=timeout, **kw); b=rpc.BackendType.TENSORPIPE
    rpc.init_rpc(f"w{rank}", backend=b, rank=rank, world_size=world, rpc_backend_options=o)
T0=time.time()
def say(*a):
    os.write(1, (f"[{os.environ.get('ADVR','?')}/{os.getpid()} {time.time()-T0:6.2f}] "+" ".join(str(x) for x in a)+"\n").encode())
def tried(what, f, *a, limit=8.0, **k):
    t=time.time()
    try: r=repr(f(*a,**k))[:100]
    except BaseException as e: r=f"{type(e).__name__}: {str(e)[:300]}"
    d=time.time()-t
    say(what, "->", r, f"({d:.2f}s)", "SLOW" if d>limit else "")
def books():
    import torchwire
    return [repr(r)[:200] for r in torchwire.rrefs()], list(torchwire.autograd_contexts())
def tbooks(label=""):
    if os.environ.get("ADVB","torchwire")!="torchwire": return
    e=time.time()+3
    while time.time()<e:
        b=books()
        if not b[0] and not b[1]: break
        time.sleep(.05)
    say("books", label, "LEFT" if b[0] or b[1] else "empty", b)

def main(cases):
    """python a1.py CASE,CASE,... [backend] [repeat]: forks the workers from this process, before init_rpc"""
    b=os.environ["ADVB"]=sys.argv[2] if len(sys.argv)>2 else "torchwire"
    if b=="torchwire": import torchwire
    n=int(sys.argv[3]) if len(sys.argv)>3 else 1
    limit=float(os.environ.get("ADVL","40"))
    for name in sys.argv[1].split(",")*n:
        d=tempfile.mkdtemp(); os.environ["ADVS"]=d+"/store"
        ps=[]
        for r in range(len(cases[name])):
            p=os.fork()
            if p==0:
                os.environ["ADVR"]=str(r); globals()["T0"]=time.time()
                cases[name][r](); return
            ps.append(p)
        end=time.time()+limit; out=[None]*len(ps)
        while None in out and time.time()<end:
            for i,p in enumerate(ps):
                if out[i] is None:
                    q,st=os.waitpid(p,os.WNOHANG)
                    if q: out[i]=os.waitstatus_to_exitcode(st)
            time.sleep(.02)
        for i,p in enumerate(ps):
            if out[i] is None:
                out[i]="HANG"; os.kill(p,9); os.waitpid(p,0)
        os.write(1,f"== {name} {os.environ['ADVB']} exits {out} {time.time()-end+limit:.1f}s\n".encode())
